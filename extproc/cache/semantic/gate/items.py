"""The words of a framed question, one after the other, to items: each word of meaning with what
the small words around it say of it. It must never drop a word that it does not know."""

from extproc.cache.semantic.gate import grammar, voice
from extproc.cache.semantic.gate.lexicon import (
    NATIONS,
    OPPOSITES,
    VERB_SYNONYMS,
    VERBS,
    word_set,
)
from extproc.cache.semantic.gate.parsed import Item
from extproc.cache.semantic.gate.voice import is_participle, is_past
from extproc.cache.semantic.gate.words import base, meaning

IRREGULAR_PLURALS = word_set("children men women mice feet teeth geese lives wives knives")
BEFORE_SUBJECT = grammar.AUXILIARY | grammar.CLAUSE | word_set("not n't before after")


class Walk:
    """Reads words in order. What it keeps about small words is what the next item will carry."""

    def __init__(
        self,
        words: list[str],
        literals: list[str],
        capitals: dict[str, str],
        modal_is_noun: bool,  # "how do I open a can": the question's own modal is gone already
    ) -> None:
        self.words = words
        self.literals = literals
        self.capitals = capitals
        self.modal_is_noun = modal_is_noun
        # What the walk is for.
        self.items: list[Item] = []
        self.past = self.future = self.perfect = False
        self.modals: set[str] = set()
        self.person = ""
        self.first_auxiliary = ""
        self.passive_at = -1  # where the last passive verb stands
        # For the next item.
        self.preposition = self.determiner = self.join = self.pause = ""
        self.unused_preposition = self.unused_determiner = ""  # set, and no item carries it yet
        self.negated = False
        self.phrase = 0
        # Of the clause so far.
        self.auxiliary = False  # a "do" behind one is a verb
        self.be = False  # a participle behind one is a passive

    def read(self) -> None:
        for position, word in enumerate(self.words):
            before = self.words[position - 1] if position else ""
            after = self.words[position + 1] if position + 1 < len(self.words) else ""
            if not (self._auxiliary(position, word, before, after) or self._small(word, before)):
                self._word(word, before, after)
        self._end()
        if self.passive_at >= 0:
            self.items = voice.agent_first(self.items, self.passive_at)

    def _auxiliary(self, position: int, word: str, before: str, after: str) -> bool:
        """Tense, modality, person; True if `word` says nothing else."""
        if word in grammar.MODAL and not (self.modal_is_noun or self.unused_determiner):
            self.modals.add(grammar.MODAL[word])
            self.future |= grammar.MODAL[word] == "will"
        elif word in grammar.BE:
            self.first_auxiliary = self.first_auxiliary or "be"
        elif word in grammar.DO and after and before != "to" and not self.auxiliary:
            self.first_auxiliary = self.first_auxiliary or "do"
        elif word in grammar.HAVE and any(
            is_participle(ahead) for ahead in self.words[position + 1 : position + 4]
        ):
            self.perfect = True  # "has he seen"; "has he a dog" is a verb
        else:
            return False
        self.past |= word in grammar.PAST_AUXILIARY
        self._new_phrase("")
        self.auxiliary |= word not in grammar.HAVE
        self.be |= word in grammar.BE
        return True

    def _small(self, word: str, before: str) -> bool:
        """Determiners, joints, pauses and "not"; True if `word` is one."""
        if word in (";", "|"):
            self._new_phrase("")
            self.pause = "," if word == ";" else "."
            self.auxiliary = False
        elif word in ("not", "n't"):
            self.negated = not self.negated
        elif word == "'s" and self.items:
            self.items[-1] = self.items[-1]._replace(possessive=True)
        elif word in grammar.JOINS:
            self._keep_unused()
            if self.join:
                self._add(self.join)
            self.join = grammar.JOINS[word]
            self.phrase += 1
            self.determiner = ""
            self.auxiliary = False
        elif word in grammar.DETERMINERS:
            if self.unused_determiner:  # "the my"
                self._add(self.unused_determiner)
            if self.determiner or before not in grammar.PREPOSITIONS:
                self.phrase += 1
                if before not in grammar.JOINS and before not in grammar.PREPOSITIONS:
                    self.preposition = ""
            self.determiner = grammar.DETERMINERS[word]
            self.unused_determiner = word
        else:
            return False
        return True

    def _word(self, word: str, before: str, after: str) -> None:
        if word in grammar.PREPOSITIONS and after:
            unused, self.unused_preposition = self.unused_preposition, ""
            self._new_phrase(f"{unused} {word}".strip())
            self.unused_preposition = self.preposition
        elif (
            word in grammar.SUBJECTS
            and self._is_subject(before, after)
            and self.person in ("", word)
        ):
            self.person = word
        else:
            self._add(word)
            if before == "to" and base(word) in VERBS:
                self._new_phrase("")

    def _is_subject(self, before: str, after: str) -> bool:
        if not after and before not in grammar.AUXILIARY:
            return False  # "bad for you"
        return not before or before in (";", "|") or before[0] == "_" or before in BEFORE_SUBJECT

    def _new_phrase(self, preposition: str) -> None:
        self._keep_unused()
        self.phrase += 1
        self.preposition = preposition
        self.determiner = ""

    def _keep_unused(self) -> None:
        """A preposition or determiner that no word has carried is a word of its own."""
        for word in (self.unused_preposition, self.unused_determiner):
            if word:
                self.preposition = self.determiner = ""
                self.unused_preposition = self.unused_determiner = ""
                self._add(word)

    def _end(self) -> None:
        """What stands last and waits for a word is a word of its own: "why not"."""
        self._keep_unused()
        if self.join:
            join, self.join = self.join, ""
            self._add(join)
        if self.negated:
            self.negated = False
            self._add("^not")

    def _add(self, word: str) -> None:
        literal = word[0] == "§" and word != "§q"
        surface = self.literals[int(word[1:])] if literal else word
        name = "=" + surface if word[0] == "§" else meaning(word)
        if word in VERB_SYNONYMS and (not self.items or self.preposition == "to"):
            name = VERB_SYNONYMS[word]
        negated = self.negated ^ (name in OPPOSITES)
        name = OPPOSITES.get(name, name)
        self.items.append(
            Item(
                word=NATIONS.get(name, name),
                surface=surface,
                preposition=self.preposition,
                determiner=self.determiner,
                negated=negated,
                plural=base(word) != word and (word.endswith("s") or word in IRREGULAR_PLURALS),
                past=is_past(word) and not self.be and not self.perfect,
                nation=name in NATIONS,
                join=self.join,
                pause=self.pause,
                phrase=self.phrase,
                capital=self.capitals.get(word, ""),
            )
        )
        # "What is a stock split" and "for used cars" hold nouns and adjectives, no passive.
        noun = self.determiner == "a" and base(word) == word
        passive = self.be and is_participle(word) and not noun and not self.unused_preposition
        self.join = self.pause = self.unused_preposition = self.unused_determiner = ""
        self.negated = False
        if name in grammar.CLAUSE:
            self.auxiliary = False
            self._new_phrase("")
        if passive:
            self.passive_at = voice.turn(self.items)
            self.be = False
