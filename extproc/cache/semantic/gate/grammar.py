"""The small words of English by what they do. None is dropped without leaving a mark that is compared."""

BE = frozenset("is are was were am be been".split())
DO = frozenset("do does did".split())
HAVE = frozenset("has have had having".split())
MODAL = (
    {"may": "can", "shall": "will", "ought": "should"}
    | {word: word for word in "can could will would should must might".split()}
    | {"_can-ok": "can, as in 'is it ok'", "_can-possible": "can, as in 'is it possible'"}
)
PAST_AUXILIARY = frozenset("was were did had".split())
AUXILIARY = BE | DO | frozenset(MODAL)
DETERMINERS = {"a": "a", "an": "a", "the": "the"} | {
    word: word for word in "my your his her our their its".split()
}
PREPOSITIONS = frozenset(
    "from to into than by of in on with for at about using between against through onto via upon near"
    " inside toward within without over under above below behind beside beyond across along around"
    " during before after until since till like per as among have-in in-front-of because-of"
    " instead-of out-of".split()
)
JOINS = {"and": "and", "or": "or", "vs": "vs", "versus": "vs", "nor": "nor"}
SUBJECTS = {"i": "i", "you": "you", "we": "we", "one": "one"}
OBJECTS = frozenset("me us".split())
QUESTION_WORDS = frozenset("what which who whom whose when where why how".split())
# Words that change what "not", or an order of words, applies to.
SCOPE = frozenset(
    "all every some any only both most many few each either neither but or if unless that who which what"
    " because when while than always never ever even just not-only everyone everything anyone nobody"
    " nothing none no".split()
)
# An adverb of manner may stand before the verb or at the end.
ADVERBS = frozenset("fast well online early late together alone daily".split())
