"""What is the same in all turns of `forebay bench overload`: the server, the SLO, how long."""

import sys
from dataclasses import dataclass
from pathlib import Path

from serving.engine import StepTime

MODEL = "simulated"
_WARM_UP = 3.0
_LIGHT_FOR = 10.0
"""Both in mean service times."""


@dataclass(frozen=True)
class Setup:
    slots: int
    decode_ms: float
    """Of a step of the simulated server; without effect where there is a profile."""
    mean_tokens: float
    slo_s: float
    """Limit of the time to the first token."""
    seconds: float
    """Measured of each load; of each point of the sweep twice that."""
    test_seconds: float
    """Measured of the overload test."""
    seed: int
    profile: Path | None = None
    step_time: StepTime | None = None
    """What is in `profile`."""

    @property
    def service_s(self) -> float:
        """Mean service time in a full server, by the length of its steps; prompts not counted."""
        if self.step_time:
            return self.mean_tokens * self.step_time.seconds(self.slots, 0)
        return self.mean_tokens * self.decode_ms / 1000

    @property
    def nominal_per_s(self) -> float:
        """What the slots could serve if they never stood empty."""
        return self.slots / self.service_s

    @property
    def warm_up_s(self) -> float:
        """Of the load itself, before it is measured."""
        return _WARM_UP * self.service_s

    @property
    def light_s(self) -> float:
        """How long the light load after the overload goes on."""
        return _LIGHT_FOR * self.service_s

    def simulator(self, port: int) -> tuple[str, ...]:
        """The command of the server."""
        command = (sys.executable, "-m", "extproc", "sim", "--port", str(port), "--model", MODEL)
        speed = (
            ("--profile", str(self.profile))
            if self.profile
            else ("--decode-ms", str(self.decode_ms))
        )
        return (*command, "--max-num-seqs", str(self.slots), *speed)
