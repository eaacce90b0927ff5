"""The fail-closed check between a similar question and its stored answer: do both ask the same?

`parse` once for each text (keep the result beside the entry), `same_question` for each candidate.
Pure functions of their arguments; the only room of Forebay that needs simplemma (extra `semantic`),
so import it only where the semantic cache is on. The first `parse` loads the words (0.2 s).

    parse:          payloads -> tokens -> language? -> typos, numbers -> frames -> items (voice)
    same_question:  vetoes -> match (every word) -> order -> agreement of the matched words

What a word means is said in `words` and the lists of `data/`; each list says what may stand in it.
A new frame or synonym needs pairs that attack it in tests/unit/data/semantic-fresh.jsonl.
"""

from extproc.cache.semantic.gate.parse import parse
from extproc.cache.semantic.gate.parsed import Item, Parsed, Refused, Verdict
from extproc.cache.semantic.gate.verdict import same_question

__all__ = ["Item", "Parsed", "Refused", "Verdict", "parse", "same_question"]
