"""The engine of the simulated server: what vLLM V1's scheduler does, without a model.

Pure: the clock is an argument, time moves only by `Engine.step(now)`. Nothing in here may sleep, do
I/O, or know HTTP or JSON. `driver.py` gives it real time, `replay.py` virtual time.
"""

from serving.engine.kv_blocks import KvBlocks
from serving.engine.prefix import block_hashes
from serving.engine.scheduler import Engine
from serving.engine.sequence import HELD, Event, Sequence
from serving.engine.step_time import StepTime

__all__ = ["HELD", "Engine", "Event", "KvBlocks", "Sequence", "StepTime", "block_hashes"]
