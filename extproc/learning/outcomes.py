"""Reads a file of outcomes. Never leaves a line out: a wrong one is an error that names it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from extproc.learning.apgr import Floats
from extproc.learning.boosting import Flags
from extproc.routing.outcome import Outcome


class OutcomesError(Exception):
    """Nothing can be learned from the file; the message says why."""


@dataclass(frozen=True)
class Outcomes:
    """Of n requests, in order of time."""

    time_s: Floats
    x: Floats
    """(n, features)"""
    small_right: Flags
    large_right: Flags

    @property
    def gain(self) -> Floats:
        """1 where only large is right, -1 where only small is."""
        return self.large_right.astype(np.float64) - self.small_right

    @property
    def wanted(self) -> Flags:
        """Where large helps: "small wrong" alone would also send large what defeats both."""
        return self.large_right & ~self.small_right

    def __len__(self) -> int:
        return len(self.time_s)

    def where(self, rows: "slice | Flags") -> "Outcomes":
        """These requests alone."""
        return Outcomes(
            self.time_s[rows], self.x[rows], self.small_right[rows], self.large_right[rows]
        )


def read(file: Path) -> Outcomes:
    """Raises OutcomesError."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise OutcomesError(f"{file}: cannot be read: {error.strerror}") from error
    rows: list[Outcome] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(Outcome.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise OutcomesError(
                f"{file}, line {number}: {where}{first['msg'].removeprefix('Value error, ')}"
            ) from error
    if not rows:
        raise OutcomesError(f"{file}: has no line")
    rows.sort(key=lambda row: row.time_s)
    return Outcomes(
        np.array([row.time_s for row in rows]),
        np.array([row.in_order for row in rows]),
        np.array([row.small_right for row in rows]),
        np.array([row.large_right for row in rows]),
    )
