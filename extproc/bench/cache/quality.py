"""How often the caches are right: on pairs, on texts that depend on more than themselves, and on
statements. A plain threshold on the same vectors stands beside each; it decides nothing elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from extproc.bench.cache.data import Pair, PairFile, StatefulFile
from extproc.bench.cache.rig import DEFAULTS, Rig
from extproc.bench.cache.vectors import Known
from extproc.bench.lab import say
from extproc.cache.partitions import Item, MemoryPartitions, PartitionKey, Vector
from extproc.cache.scope import Scope
from extproc.cache.semantic.cache import MOST_CANDIDATES
from extproc.cache.semantic.gate import Parsed, Refused, parse, same_question
from extproc.cache.semantic.stateless import why_stateful

Told = dict[str, Any]

PLAIN = 0.90
"""The threshold that others take."""
THRESHOLDS = tuple(n / 100 for n in range(80, 100))


class Judged(NamedTuple):
    pair: Pair
    hit: bool
    outcome: str
    similarity: float | None
    """None: the model does not read one of them whole."""

    def above(self, threshold: float) -> bool:
        return self.similarity is not None and self.similarity >= threshold


async def pairs(file: PairFile, known: Known) -> Told:
    """Each pair alone, in a scope of its own: the first is stored, the second asked."""
    say(f"{file.name}: {len(file.pairs):,} pairs")
    rig = Rig(known)
    judged: list[Judged] = []
    for number, pair in enumerate(file.pairs):
        await rig.store(pair.stored, "stored", str(number))
        asked = await rig.ask(pair.asked, str(number))
        vectors = known.vector(pair.stored), known.vector(pair.asked)
        similarity = _cosine(*vectors)
        judged.append(Judged(pair, asked.answer is not None, asked.looked.outcome, similarity))
    kinds = sorted({(pair.same, pair.kind) for pair in file.pairs})
    return {
        "file": file.name,
        "has_bar": file.has_bar,
        **_counts(judged),
        "true_hit_share": _share([each.hit for each in judged if each.pair.same]),
        "false_hit_lines": [n for n, each in enumerate(judged, 1) if _is_false(each)],
        "paraphrases_missed_by": dict(
            Counter(each.outcome for each in judged if each.pair.same and not each.hit)
        ),
        "kinds": [
            {"kind": kind, "same": same, **_of_kind(judged, kind, same)} for same, kind in kinds
        ],
        "thresholds": [
            {
                "threshold": threshold,
                "false_hits": _hits(judged, same=False, threshold=threshold),
                "true_hits": _hits(judged, same=True, threshold=threshold),
            }
            for threshold in THRESHOLDS
        ],
    }


def _is_false(judged: Judged) -> bool:
    return judged.hit and not judged.pair.same


def _counts(judged: Sequence[Judged]) -> Told:
    return {
        "near_misses": sum(not each.pair.same for each in judged),
        "false_hits": _hits(judged, same=False),
        "threshold_false_hits": _hits(judged, same=False, threshold=PLAIN),
        "paraphrases": sum(each.pair.same for each in judged),
        "true_hits": _hits(judged, same=True),
        "threshold_true_hits": _hits(judged, same=True, threshold=PLAIN),
    }


def _of_kind(judged: Sequence[Judged], kind: str, same: bool) -> Told:
    those = [each for each in judged if (each.pair.kind, each.pair.same) == (kind, same)]
    return {
        "pairs": len(those),
        "hits": sum(each.hit for each in those),
        "threshold_hits": sum(each.above(PLAIN) for each in those),
    }


def _hits(judged: Iterable[Judged], *, same: bool, threshold: float | None = None) -> int:
    """Of the caches, or of a threshold alone."""
    return sum(
        each.hit if threshold is None else each.above(threshold)
        for each in judged
        if each.pair.same == same
    )


def stateful(file: StatefulFile, known: Known) -> Told:
    read = [(each, known.vector(each.text)) for each in file.texts]
    told = [
        (why_stateful(each.text, vector, known.model) is not None, each.stateful)
        for each, vector in read
        if vector is not None
    ]
    return {
        "file": file.name,
        "trained_on": file.trained_on,
        "texts": len(told),
        "not_read_whole": len(read) - len(told),
        "stateful": sum(is_so for _, is_so in told),
        "precision": _share([is_so for said, is_so in told if said]),
        "recall": _share([said for said, is_so in told if is_so]),
    }


async def statements(rows: list[tuple[str, str]], known: Known) -> Told:
    """All first wordings are stored, then all second ones asked: right is the answer to its own."""
    say(f"{len(rows):,} statements stored, {len(rows):,} asked")
    rig = Rig(known, max_entries=max(len(rows), DEFAULTS.max_entries))
    found = 0
    for number, (stored, _) in enumerate(rows):
        found += await rig.store(stored, str(number), "all")
    asked = [await rig.ask(again, "all") for _, again in rows]
    side = _Side(rows, known)
    return {
        "statements": len(rows),
        "may_be_found": found,
        "decision": _three([each.answer for each in asked]),
        "missed_by": dict(Counter(each.looked.outcome for each in asked if each.answer is None)),
        "gate_alone": _three([side.by_gate(again) for _, again in rows]),
        f"threshold_{PLAIN:.2f}": _three([side.by_threshold(again) for _, again in rows]),
    }


class _Side:
    """Beside the whole decision: all first wordings in a partition, whatever they depend on."""

    def __init__(self, rows: list[tuple[str, str]], known: Known) -> None:
        self._known = known
        self._key = PartitionKey(Scope("user", "bench", "side"), b"", b"")
        self._partitions = MemoryPartitions(max(1, len(rows)), 2**40, lambda: 0.0)
        for number, (stored, _) in enumerate(rows):
            vector = known.vector(stored)
            if vector is not None:
                item = Item(b"%d" % number, stored, 1.0)
                item.parsed = parse(stored)
                self._partitions.add(self._key, item, vector)

    def by_threshold(self, text: str) -> str | None:
        vector = self._known.vector(text)
        if vector is None:
            return None
        found = self._partitions.nearest_now(self._key, vector, PLAIN, 1)
        return found[0].item.id.decode() if found else None

    def by_gate(self, text: str) -> str | None:
        vector, asked = self._known.vector(text), parse(text)
        if vector is None or isinstance(asked, Refused):
            return None
        for _, item in self._partitions.nearest_now(
            self._key, vector, DEFAULTS.similarity, MOST_CANDIDATES
        ):
            if isinstance(item.parsed, Parsed) and same_question(asked, item.parsed).same:
                return item.id.decode()
        return None


def _three(answers: Sequence[str | None]) -> Told:
    right = sum(answer == str(number) for number, answer in enumerate(answers))
    missed = sum(answer is None for answer in answers)
    wrong = len(answers) - right - missed
    hits = right + wrong
    return {
        "right": right,
        "wrong": wrong,
        "missed": missed,
        "wrong_share": wrong / hits if hits else None,
    }


def _cosine(one: Vector | None, other: Vector | None) -> float | None:
    return None if one is None or other is None else float(one @ other)


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
