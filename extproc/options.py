"""What options of several commands have in common."""

import typer
from pydantic import TypeAdapter, ValidationError

from extproc.config.values import DurationS

_DURATION: TypeAdapter[float] = TypeAdapter(DurationS)


def duration_s(text: str) -> float:
    """As in the config: `500ms`, `10s`."""
    try:
        return _DURATION.validate_python(text)
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
