"""Files that the policy names: their content, and by what a change of them shows."""

from pathlib import Path
from typing import NamedTuple

from extproc.config.policy import ConfigError


class Stamp(NamedTuple):
    """By what a change shows, also of a link's target (a ConfigMap)."""

    modified_ns: int
    size: int
    inode: int


def stamp(path: Path | None) -> Stamp | None:
    """None: there is no such file. Take it before the file is read, or a change between the two is
    never seen."""
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def read_bytes(path: Path, key: str, *, most: int) -> bytes:
    """`key`: where the policy names it. ConfigError: it cannot be read, or is larger."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise ConfigError(f"{key}: {path} is larger than {most:,} bytes: that is no such file")
    return content
