"""Which word of one side answers which of the other. A word that finds none is returned as
unexplained; no word is ever forgiven."""

from typing import NamedTuple

from extproc.cache.semantic.gate.parsed import Item
from extproc.cache.semantic.gate.typos import slip_of


class Matched(NamedTuple):
    pairs: list[tuple[int, int]]  # places in the one and the other, in the order of the one
    left: list[int]  # places of the one that nothing explains
    right: list[int]


def match(one: tuple[Item, ...], other: tuple[Item, ...]) -> Matched:
    places: dict[str, list[int]] = {}
    for place, item in enumerate(other):
        places.setdefault(item.word, []).append(place)
    pairs: list[tuple[int, int]] = []
    left: list[int] = []
    for place, item in enumerate(one):
        if same := places.get(item.word):
            pairs.append((place, same.pop(0)))
        else:
            left.append(place)
    right = sorted(place for rest in places.values() for place in rest)
    if left and right:
        _slips(one, other, left, right, pairs)
    if left and right:
        _compounds(one, other, left, right, pairs)
        _compounds(other, one, right, left, pairs, swapped=True)
    return Matched(sorted(pairs), left, right)


def _slips(
    one: tuple[Item, ...],
    other: tuple[Item, ...],
    left: list[int],
    right: list[int],
    pairs: list[tuple[int, int]],
) -> None:
    for i in list(left):
        a = one[i]
        found = [
            j
            for j in right
            if "c" not in (a.capital, other[j].capital)
            and (slip_of(a.surface, other[j].surface) or slip_of(other[j].surface, a.surface))
        ]
        if len(found) == 1:
            left.remove(i)
            right.remove(found[0])
            pairs.append((i, found[0]))


def _compounds(
    whole: tuple[Item, ...],
    split: tuple[Item, ...],
    whole_left: list[int],
    split_left: list[int],
    pairs: list[tuple[int, int]],
    swapped: bool = False,
) -> None:
    """'homepage' and 'home page'. The pair stands for both parts."""
    for i in list(whole_left):
        for j in split_left[:-1]:
            both = j + 1 in split_left and split[j].phrase == split[j + 1].phrase
            if both and split[j].surface + split[j + 1].surface == whole[i].surface:
                whole_left.remove(i)
                split_left.remove(j)
                split_left.remove(j + 1)
                pairs.append((j + 1, i) if swapped else (i, j + 1))
                break
