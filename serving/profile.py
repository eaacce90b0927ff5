"""The file in which a calibration keeps the speed of a real server, for `forebay sim --profile`.

The only module of the simulator that reads or writes a file. Must never hold a key or a prompt.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from serving.engine import StepTime


class ProfileFileError(ValueError):
    """The file cannot be used; the message names it, the member and what is wrong."""


def load(path: Path) -> StepTime:
    """Its `step_time`. Raises ProfileFileError."""
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ProfileFileError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ProfileFileError(f"{path}: is no JSON: {error}") from error
    step_time = found.get("step_time") if isinstance(found, dict) else None
    names = StepTime.names()
    if not isinstance(step_time, dict) or set(step_time) != set(names):
        raise ProfileFileError(f"{path}: step_time: want an object of {', '.join(names)}")
    try:
        return StepTime(**step_time)
    except ValueError as error:
        raise ProfileFileError(f"{path}: step_time.{error}") from error


def save(path: Path, step_time: StepTime, measured: dict[str, Any]) -> None:
    """Write it, with what it was measured on beside it. Raises OSError."""
    shown = {"step_time": asdict(step_time), "measured": measured}
    path.write_bytes(orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
