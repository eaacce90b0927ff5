"""A secret that is sent to a server. It is read once; it must never appear in logs or errors."""

import os
from collections.abc import Mapping
from pathlib import Path

from extproc.config import content_of


class Credential:
    """Its text form tells nothing; `header` is the only way to what it holds."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    @classmethod
    def from_file(cls, path: Path) -> "Credential":
        """White space around it is not part of it. ValueError: it cannot be read, or is none."""
        try:
            return cls(_sound(content_of(path).decode("ascii").strip()))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:  # its own text would quote what was read
            raise ValueError(f"{path}: one line of visible ASCII characters is needed") from None

    @classmethod
    def from_environment(
        cls, name: str, environment: Mapping[str, str] = os.environ
    ) -> "Credential":
        """ValueError: the variable is not set, or is none."""
        if name not in environment:
            raise ValueError(f"the environment variable {name} is not set")
        try:
            return cls(_sound(environment[name].strip()))
        except ValueError:
            raise ValueError(f"{name}: one line of visible ASCII characters is needed") from None

    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secret}"}

    def __repr__(self) -> str:
        return "Credential(...)"


def _sound(secret: str) -> str:
    """A line break would end the header and begin another."""
    if not secret or not all("!" <= character <= "~" for character in secret):
        raise ValueError
    return secret
