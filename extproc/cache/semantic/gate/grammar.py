"""The small words of English by what they do. None is dropped without leaving a mark that is
compared."""

from extproc.cache.semantic.gate.lexicon import word_set

BE = word_set("is are was were am be been")
DO = word_set("do does did")
HAVE = word_set("has have had having")
MODAL = {
    "can": "can",
    "may": "can",
    "could": "could",
    "will": "will",
    "shall": "will",
    "would": "would",
    "should": "should",
    "ought": "should",
    "must": "must",
    "might": "might",
    "_can-ok": "can (is it ok)",
    "_can-possible": "can (is it possible)",
}
PAST_AUXILIARY = word_set("was were did had")
AUXILIARY = BE | DO | frozenset(MODAL)
OWNERS = word_set("my your his her our their its")
DETERMINERS = {"a": "a", "an": "a", "the": "the"} | {word: word for word in OWNERS}
PREPOSITIONS = word_set(
    "from to into than by of in on with for at about using between against through onto via"
    " upon near inside toward within without over under above below behind beside beyond across"
    " along around during before after until since till like per as among have-in in-front-of"
    " because-of instead-of out-of"
)
JOINS = {"and": "and", "or": "or", "vs": "vs", "versus": "vs", "nor": "nor"}
SUBJECTS = word_set("i you we one")
QUESTION_WORDS = word_set("what which who whom whose when where why how")
# Words that open a clause with a subject of its own.
CLAUSE = QUESTION_WORDS | word_set("if because that while unless")
# Words that change what "not", or an order of words, applies to.
SCOPE = word_set(
    "all every some any only both most many few each either neither but or if unless that who"
    " which what because when while than always never ever even just everyone everything anyone"
    " nobody nothing none no"
)
# An adverb of manner may stand before the verb or at the end.
ADVERBS = word_set("fast well online early late together alone daily")
# Written in capitals (US, IT, WHO) they are names.
GRAMMAR_WORDS = word_set(
    "a am an and are as at be been but by can could did do does for from had has have he her"
    " him his how if in into is it its may me might must my no not of on or our she should so"
    " than that the their them there they this to up was we were what when where which who why"
    " will with would you your"
)
