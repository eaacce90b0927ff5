"""From the policy's block to what a Shadow needs of this machine. Blocks for files."""

import os

from extproc.config import ConfigError, LearningConfig
from extproc.credential import Credential

JUDGE_KEY = "FOREBAY_JUDGE_KEY"
_KEY = "forebay.routing.learning"


def judge_credential(settings: LearningConfig) -> Credential | None:
    """Of the file, or of the environment. ConfigError: it cannot be read; or outcomes cannot be
    written, which had better be known before anything is paid for them."""
    folder = settings.file.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{_KEY}.file: {folder} is no folder that can be written to; create it")
    try:
        if settings.judge.key_file:
            return Credential.from_file(settings.judge.key_file)
        if JUDGE_KEY in os.environ:
            return Credential.from_environment(JUDGE_KEY)
    except ValueError as error:
        raise ConfigError(f"{_KEY}.judge.key_file: {error}") from error
    return None
