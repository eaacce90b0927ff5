"""The questions of `forebay bench routing`: prompts, and which of two models answered them right.

Never makes up a line, and never leaves one out; a file that is not there is said to be missing.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from extproc.bench.lab import BenchError
from extproc.bench.routing import subjects
from extproc.learning.apgr import Ints
from extproc.learning.boosting import Flags
from extproc.learning.outcomes import Outcomes
from extproc.routing.features import features

FILE = "routing-dev.jsonl"


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    bench: str
    prompt: str
    weak: bool
    strong: bool
    subject: str | None = None


@dataclass(frozen=True)
class Questions:
    """n questions, in the order of the file."""

    prompts: list[str]
    outcomes: Outcomes
    benches: list[str]
    subjects: list[str | None]

    def where(self, rows: Flags) -> "Questions":
        kept = np.flatnonzero(rows).tolist()
        return Questions(
            [self.prompts[at] for at in kept],
            self.outcomes.where(rows),
            [self.benches[at] for at in kept],
            [self.subjects[at] for at in kept],
        )

    def of_bench(self, bench: str) -> "Questions":
        return self.where(np.array([each == bench for each in self.benches]))

    def subject_numbers(self) -> Ints | None:
        """From 0; None where not all subjects are known, or there is only one."""
        names = sorted({name for name in self.subjects if name is not None})
        if None in self.subjects or len(names) < 2:
            return None
        return np.array([names.index(name) for name in self.subjects if name is not None])


def read(folder: Path) -> Questions | None:
    """None: there is no file. Raises BenchError."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from error
    lines = [_line(path, number, line) for number, line in enumerate(content.splitlines(), 1)]
    if not lines:
        raise BenchError(f"{path}: has no line")
    named = [line.subject for line in lines]
    if hashlib.sha256(content).hexdigest() == subjects.SHA256:
        of_mmlu = iter(subjects.subjects())
        named = [next(of_mmlu) if line.bench == "mmlu" else None for line in lines]
    return Questions(
        [line.prompt for line in lines],
        Outcomes(
            np.arange(len(lines), dtype=np.float64),  # exams have no time
            np.array([features(line.prompt) for line in lines]),
            np.array([line.weak for line in lines]),
            np.array([line.strong for line in lines]),
        ),
        [line.bench for line in lines],
        named,
    )


def _line(path: Path, number: int, line: bytes) -> _Line:
    try:
        return _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise BenchError(f"{path}, line {number}: {where}{first['msg']}") from error
