"""The fail-closed check between a similar question and its stored answer: do both ask the same?

`parse` once for each text (keep it beside the entry), `same_question` for each candidate. Pure
functions of their arguments; the only room of Forebay that needs simplemma (extra `semantic`), so
import it only where the semantic cache is on. The first call reads the word lists (0.2 s).

    tokens -> numbers, typos -> politeness, questions (frames) -> items       = parse
    vetoes -> match (every word) -> agreement, order of the matched words    = same_question
"""

from extproc.cache.semantic.gate.parse import parse
from extproc.cache.semantic.gate.parsed import Item, Parsed, Refused, Verdict
from extproc.cache.semantic.gate.verdict import same_question

__all__ = ["Item", "Parsed", "Refused", "Verdict", "parse", "same_question"]
