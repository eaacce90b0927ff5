"""What the policy names and is no file to be read: it is told at once, and nobody waits for it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.config import CacheConfig, ConfigError, DifficultyConfig
from extproc.config.secrets import credentials
from extproc.credential import Credential
from extproc.judging import make_judging
from extproc.shadow.lines import LinesFile, NotAdded

pytestmark = pytest.mark.timeout(10)


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def large(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


NO_FILES = [
    (pipe, "it is no regular file"),
    (folder, "Is a directory"),
    (large, "it is larger than 1,048,576 bytes"),
    (lambda path: Path("/dev/zero"), "it is no regular file"),
]


@pytest.mark.parametrize(("make", "why"), NO_FILES)
def test_what_cannot_be_a_small_file_is_refused_before_it_is_read(
    tmp_path: Path, make: Callable[[Path], Path], why: str
) -> None:
    path = make(tmp_path / "named")
    said = f"{path} cannot be read: {why}"
    with pytest.raises(ConfigError) as refused:
        make_judging(DifficultyConfig(policy="learned", model_file=path))
    assert str(refused.value) == f"forebay.routing.difficulty.model_file: {said}"
    with pytest.raises(ConfigError) as refused:
        credentials(CacheConfig(secret_file=path))
    assert str(refused.value) == f"forebay.cache.secret_file: {said}"
    with pytest.raises(ValueError, match=f"^{path}: cannot be read: {why}$"):
        Credential.from_file(path)


@pytest.mark.parametrize("make", [pipe, lambda path: Path("/dev/null")])
async def test_outcomes_go_into_nothing_but_a_file(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    file = LinesFile(make(tmp_path / "outcomes"))
    for _ in range(2):
        with pytest.raises(NotAdded, match=r"no regular file|No such device"):
            await file.add(b"{}")
