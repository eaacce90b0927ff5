"""From the policy to the way of judging that it describes, with the model's file read and believed.

What has kept a share goes on over a change of the config, unless how it is judged has changed.
"""

from dataclasses import dataclass

from extproc.config import ConfigError, DifficultyConfig, Stamp, read_bytes, stamp
from extproc.routing.difficulty import Difficulty, Learned, Off, Prior, Rules, Scored
from extproc.routing.drift import Drift
from extproc.routing.learned import Model, ModelError, parse

_KEY = "forebay.routing.difficulty.model_file"


@dataclass(frozen=True, slots=True)
class Judging:
    settings: DifficultyConfig
    difficulty: Difficulty
    model: Model | None = None
    drift: Drift | None = None
    """With a model: whether the traffic still is what it was compared on."""
    stamp: Stamp | None = None
    """Of the model's file, as it was read."""

    @property
    def in_force(self) -> str:
        """The policy that judges now: prior instead of learned, once the traffic has drifted."""
        return "prior" if self.drift is not None and self.drift.found else self.settings.policy

    @property
    def share(self) -> float | None:
        """Promised to the large pool; None: no share is."""
        return self.settings.share if isinstance(self.difficulty, Scored) else None


def make_judging(settings: DifficultyConfig) -> Judging:
    """Reads the model's file. ConfigError, which names it: it cannot be used."""
    return changed_judging(None, settings)


def changed_judging(old: Judging | None, settings: DifficultyConfig) -> Judging:
    """The old one, where neither the settings nor the model are others. ConfigError as above."""
    read_at, model = stamp(settings.model_file), None
    if settings.policy == "learned" and settings.model_file is not None:
        try:
            model = parse(read_bytes(settings.model_file, _KEY))
        except ModelError as error:
            raise ConfigError(f"{_KEY}: {settings.model_file}: {error}") from error
    if old is not None and old.settings == settings and old.model == model:
        return Judging(old.settings, old.difficulty, old.model, old.drift, read_at)
    if model is not None:
        learned = Learned(model)
        scored = Scored(learned, settings.share)
        return Judging(settings, scored, model, learned.drift, read_at)
    return Judging(settings, _by_hand(settings), stamp=read_at)


def _by_hand(settings: DifficultyConfig) -> Difficulty:
    if settings.policy == "off":
        return Off("small")
    if settings.policy == "rules":
        return Rules()
    return Scored(Prior(), settings.share)
