"""What the check found, and how it is shown."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Literal

Severity = Literal["error", "warning"]

_WIDTH = 100

RENEW = "Let `forebay attach FILE --write` do it,"
"""Of what attach adds or renews in a file that it, or an earlier version, made."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    """error: it bites, or Forebay does not start. warning: it may bite, or a part is missing."""
    rule: str
    """The rule's short name, in kebab-case; it does not change."""
    place: str
    """Path in the YAML and, in brackets, the name of what stands there."""
    reason: str
    """What would happen."""
    mend: str
    """What to write instead."""
    line: int | None = None
    """Where in the file the place is, in the one that the place names if it names one; None: not
    known, or the file lacks it."""


def error(rule: str, place: object, reason: str, mend: str) -> Finding:
    return Finding("error", rule, str(place), reason, mend)


def warning(rule: str, place: object, reason: str, mend: str) -> Finding:
    return Finding("warning", rule, str(place), reason, mend)


def as_text(findings: Sequence[Finding], notes: Sequence[str] = ()) -> str:
    """For a terminal: errors first, under each place what is wrong there; the last line counts."""
    lines: list[str] = []
    for severity in ("error", "warning"):
        chosen = [f for f in findings if f.severity == severity]
        if chosen:
            lines += [f"{severity}s".upper(), ""]
        for place, here in groupby(chosen, key=lambda f: f.place):
            of_place = list(here)
            at = of_place[0].line
            lines.append(f"line {at}: {place}" if at else place)
            for finding in of_place:
                lines += _wrapped(f"{finding.rule}: ", finding.reason)
                lines += _wrapped("  mend: ", finding.mend)
            lines.append("")
    for note in notes:
        lines += textwrap.wrap(f"note: {note}", _WIDTH, break_long_words=False)
    return "\n".join([*lines, _summary(findings, notes)])


def as_json(findings: Sequence[Finding], notes: Sequence[str] = ()) -> str:
    """`{"findings": [{severity, rule, place, reason, mend, line}], notes, errors, warnings}`"""
    document = {
        "findings": [asdict(finding) for finding in findings],
        "notes": list(notes),
        "errors": _count(findings, "error"),
        "warnings": _count(findings, "warning"),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {label}",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(findings: Sequence[Finding], notes: Sequence[str]) -> str:
    if not findings:
        # A note may say that a part was not checked, or that the processor would not start here.
        see = "the note above" if len(notes) == 1 else f"the {len(notes)} notes above"
        return f"Nothing found in the file, but see {see}." if notes else "Nothing found."
    counts = [
        f"{count} {severity}{'' if count == 1 else 's'}"
        for severity in ("error", "warning")
        if (count := _count(findings, severity))
    ]
    return ", ".join(counts) + "."


def _count(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)
