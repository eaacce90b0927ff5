"""Files that the policy names: their content, and by what a change of them shows."""

import errno
import os
from pathlib import Path
from stat import S_ISREG
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


def content_of(path: Path, most: int = 1024 * 1024) -> bytes:
    """OSError: it cannot be read, is larger, or is no regular file: who reads a pipe waits for who
    writes it, and whoever waits here takes no config and serves nobody."""
    with open(path, "rb", opener=_at_once) as file:
        if not S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return content


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, key: str) -> bytes:
    """`key`: where the policy names it. ConfigError: as content_of."""
    try:
        return content_of(path)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
