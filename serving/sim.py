"""A simulated vLLM 0.32 server: assembles the parts and runs them on one port.

For tests and laptops without a GPU; every response says so. Must never be mistaken for a model,
and never know anything of Forebay's gateway. Other packages import only from this module.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from serving.api import Api
from serving.driver import EngineDriver
from serving.engine import Engine
from serving.faults import Faults
from serving.metrics import Metrics, Stats
from serving.settings import SimSettings

__all__ = ["SimSettings", "run", "running", "serve"]

_BACKLOG = 1024


def run(settings: SimSettings, *, ready: Callable[[], None] | None = None) -> None:
    """`serve` on an event loop of its own: uvloop's where there is one."""
    try:
        from uvloop import new_event_loop as loop_factory
    except ImportError:
        loop_factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve(settings, ready=ready))


async def serve(settings: SimSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until cancelled, or until SIGTERM or SIGINT if this is the main thread.

    `ready` is called once connections are accepted. OSError if the port cannot be had, FaultError
    (a ValueError) if `settings.faults` is wrong; both before `ready`. At the end, connections are
    cut at once, streams in flight included.
    """
    stop = asyncio.Event()
    async with running(settings):
        with _on_signals(stop.set):
            if ready:
                ready()
            await stop.wait()


@asynccontextmanager
async def running(settings: SimSettings) -> AsyncIterator[int]:
    """The server as a block, without signal handlers; gives the port (useful for port 0)."""
    engine = Engine(
        step_time=settings.model_of_steps(),
        max_num_seqs=settings.max_num_seqs,
        num_kv_blocks=settings.kv_blocks,
        block_size=settings.block_size,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        static_batching=settings.static_batching,
    )
    stats = Stats(max_model_len=settings.max_model_len)
    driver = EngineDriver(engine, stats)
    metrics = Metrics(engine, stats, model_name=settings.models[0])
    faults = Faults(settings.seed)
    faults.replace(dict(settings.faults))
    api = Api(settings, driver, metrics, faults)
    # aiohttp sets TCP_NODELAY on every connection; handler_cancellation ends a client's work.
    runner = web.AppRunner(
        api.app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, backlog=_BACKLOG)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        driver.close()


@contextmanager
def _on_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call back on SIGTERM and SIGINT inside the block; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, callback)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
