"""The words of a framed question, one after the other, to items: each word of meaning with its
preposition, determiner, number, negation and voice. It must never drop a word that it does not know."""

from extproc.cache.semantic.gate import grammar
from extproc.cache.semantic.gate.lexicon import (
    NATIONS,
    OPPOSITES,
    PARTICIPLES,
    PAST,
    VERB_SYNONYMS,
    VERBS,
)
from extproc.cache.semantic.gate.parsed import Item
from extproc.cache.semantic.gate.words import base, meaning


class Walk:
    """Reads words in order; the attributes are what the next item will carry."""

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
        self.items: list[Item] = []
        self.past = self.future = False
        self.modals: set[str] = set()
        self.person = ""
        self.preposition = self.determiner = self.join = self.pause = ""
        self.unused_preposition = self.unused_determiner = ""  # set, and no item carries it yet
        self.negated = self.perfect = False
        self.first_auxiliary = ""
        self.auxiliary = False  # seen in this clause: a "do" behind it is a verb
        self.phrase = 0
        self.passive_at = -1  # where the last passive verb stands
        self.be_at = -1  # how many items stood before the last form of "to be"; -1: none

    def read(self) -> None:
        for position, word in enumerate(self.words):
            before = self.words[position - 1] if position else ""
            after = self.words[position + 1] if position + 1 < len(self.words) else ""
            self._word(word, before, after)
        self._end()
        if self.passive_at >= 0:
            self._agent()

    def _word(self, word: str, before: str, after: str) -> None:
        if word in (";", "|"):
            self._new_phrase("")
            self.pause = "," if word == ";" else "."
            self.auxiliary = False
        elif word in grammar.MODAL and not (self.modal_is_noun or self.unused_determiner):
            self.auxiliary = True
            self.modals.add(grammar.MODAL[word])
            self.future |= word in ("will", "shall")
            self._new_phrase("")
        elif word in grammar.BE:
            self.past |= word in grammar.PAST_AUXILIARY
            self.auxiliary = True
            self.first_auxiliary = self.first_auxiliary or "be"
            self._new_phrase("")
            self.be_at = len(self.items)
        elif word in grammar.DO and after and before != "to" and not self.auxiliary:
            self.past |= word == "did"
            self.auxiliary = True
            self.first_auxiliary = self.first_auxiliary or "do"
            self._new_phrase("")
        elif word in grammar.HAVE and self._perfect():
            self.perfect = True
            self.past |= word == "had"
            self._new_phrase("")
        elif word in ("not", "n't"):
            self.negated = not self.negated
        elif word in grammar.DETERMINERS:
            if self.determiner or before not in grammar.PREPOSITIONS:
                self.phrase += 1
                if before not in grammar.JOINS and before not in grammar.PREPOSITIONS:
                    self.preposition = ""
            if self.unused_determiner:  # "all the my"
                self._add(self.unused_determiner)
            self.determiner = grammar.DETERMINERS[word]
            self.unused_determiner = word
        elif word == "'s":
            if self.items:
                self.items[-1] = self.items[-1]._replace(possessive=True)
        elif word in grammar.PREPOSITIONS and after:
            unused, self.unused_preposition = self.unused_preposition, ""
            self._new_phrase(f"{unused} {word}".strip())
            self.unused_preposition = self.preposition
        elif word in grammar.JOINS:
            self._keep_unused()
            self.join = grammar.JOINS[word]
            self.phrase += 1
            self.determiner = ""
            self.auxiliary = False
        elif word in grammar.SUBJECTS and self._is_subject(before, after):
            self.person = self.person or grammar.SUBJECTS[word]
            if self.person != grammar.SUBJECTS[word]:
                self._add(word)
        else:
            self._add(word)
            if before == "to" and base(word) in VERBS:
                self._new_phrase("")

    def _end(self) -> None:
        """What stands last and waits for a word is a word of its own: "why not"."""
        self._keep_unused()
        if self.join:
            join, self.join = self.join, ""
            self._add(join)
        if self.negated:
            self.negated = False
            self._add("^not")

    def _keep_unused(self) -> None:
        """A preposition or determiner that no word has carried is a word of its own: "is it mine or my"."""
        for word in (self.unused_preposition, self.unused_determiner):
            if word:
                self.preposition = self.determiner = ""
                self.unused_preposition = self.unused_determiner = ""
                self._add(word)

    def _new_phrase(self, preposition: str) -> None:
        self._keep_unused()
        self.phrase += 1
        self.preposition = preposition
        self.determiner = ""

    def _is_subject(self, before: str, after: str) -> bool:
        if not after and before not in grammar.AUXILIARY:
            return False  # "bad for you"
        opens = not before or before[0] == "_" or before in (";", "|")
        return opens or before in grammar.AUXILIARY or before in grammar.QUESTION_WORDS | {
            "if", "that", "because", "not", "n't", "unless", "while", "before", "after"
        }  # fmt: skip

    def _perfect(self) -> bool:
        """'has he seen' is a tense, 'has a dog' is a verb."""
        place = next(i for i, w in enumerate(self.words) if w in grammar.HAVE)
        ahead = self.words[place + 1 : place + 4]
        return any(_participle(word) for word in ahead)

    def _add(self, word: str) -> None:
        surface = self.literals[int(word[1:])] if word[0] == "§" and word != "§q" else word
        name = "=" + surface if word[0] == "§" else meaning(word)
        if (
            not self.items
            and word in VERB_SYNONYMS
            or (self.preposition == "to" and word in VERB_SYNONYMS)
        ):
            name = VERB_SYNONYMS[word]
        negated = self.negated
        if name in OPPOSITES:
            name, negated = OPPOSITES[name], not negated
        nation = name in NATIONS
        stem = base(word)
        self.items.append(
            Item(
                word=NATIONS.get(name, name),
                surface=surface,
                preposition=self.preposition,
                determiner=self.determiner,
                negated=negated,
                plural=stem != word and (word.endswith("s") or word in IRREGULAR_PLURALS),
                past=_past(word) and self.be_at < 0 and not self.perfect,
                nation=nation,
                join=self.join,
                pause=self.pause,
                phrase=self.phrase,
                capital=self.capitals.get(word, ""),
            )
        )
        self.join = self.pause = ""
        self.unused_preposition = self.unused_determiner = ""
        self.negated = False
        if name in CLAUSE:
            self.auxiliary = False
            self._new_phrase("")
        if self.be_at >= 0 and _participle(word):
            self._passive()

    def _passive(self) -> None:
        """'Where can salmon be bought' -> 'buy salmon'; marked if there is nobody to put behind it."""
        verb = self.items.pop()
        start = self._subject_start()
        self.passive_at = start
        self.items.insert(start, verb._replace(passive=start == len(self.items)))
        self.be_at = -1

    def _subject_start(self) -> int:
        """Where the noun phrase begins that is the subject of the passive verb."""
        start = len(self.items)
        while start and not (start < len(self.items) and self.items[start].pause):
            if self.items[start - 1].word in CLAUSE:
                break
            start -= 1
            if self.items[start].join:
                return len(self.items)
        return start

    def _agent(self) -> None:
        """'paint Guernica by Picasso', of a passive -> 'Picasso paint Guernica'."""
        behind = range(self.passive_at + 1, len(self.items))
        agent = [self.items[i] for i in behind if self.items[i].preposition == "by"]
        if not agent or any(item.join or item.pause for item in agent):
            return
        rest = [item for item in self.items if item not in agent]
        verb = rest[self.passive_at]._replace(passive=False)
        self.items = [
            *rest[: self.passive_at],
            *(item._replace(preposition="") for item in agent),
            verb,
            *rest[self.passive_at + 1 :],
        ]


CLAUSE = frozenset(
    "if when because that who which while unless where why how what not-only".split()
)
IRREGULAR_PLURALS = frozenset("children men women mice feet teeth geese lives wives knives".split())


def _participle(word: str) -> bool:
    return word in PARTICIPLES or (word.endswith("ed") and base(word) != word)


def _past(word: str) -> bool:
    return word in PAST or (word.endswith("ed") and base(word) != word)
