"""What the tables of frames share. A rule is a pattern and what takes its place; patterns are
anchored and their gaps bounded, so that no text makes one slow.

The words are in small letters with one space between them, ";" for a comma, "|" for the end of a
sentence. A frame's result begins with the question's class: "_howto", "_what", "_list".
"""

import re
from collections.abc import Callable

New = str | Callable[[re.Match[str]], str]
Table = list[tuple[str, New]]
Rule = tuple[re.Pattern[str], New]

NP = r"([^ ;|]+(?: [^ ;|]+){0,9}?)"  # up to ten words without a pause


def compiled(*tables: Table) -> list[Rule]:
    return [(re.compile(pattern), new) for table in tables for pattern, new in table]


def apply(rules: list[Rule], words: str) -> str:
    for rule, new in rules:
        words = rule.sub(new, words, count=1)
    return words
