"""Watches the config file: a good change is taken without a restart, a bad one is refused whole."""

import asyncio
import logging
from pathlib import Path

from extproc import config, stores
from extproc.config import Stamp, stamp
from extproc.gateway import Gateway

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


async def watch(path: Path, seen: Stamp | None, gateway: Gateway) -> None:
    """Run until cancelled. `seen`: the stamp of the file as it is in use. The model's file that it
    names is looked at too, also where it was refused for it."""
    model = gateway.judging.settings.model_file
    model_seen = gateway.judging.stamp
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now, model_now = stamp(path), stamp(model)
        if (now, model_now) == (seen, model_seen):
            continue
        seen, model_seen = now, model_now
        try:
            loaded = await asyncio.to_thread(config.load, path)
            model = loaded.config.routing.difficulty.model_file
            model_seen = stamp(model)
            await _take(path, loaded, gateway)
        except config.ConfigError as error:
            _refuse(gateway, str(error))
        except Exception as error:  # the watch itself must outlive whatever stands in a file
            _refuse(gateway, type(error).__name__)
        else:
            gateway.metrics.reloads["taken"] += 1
            gateway.metrics.reload_successful.set(1)
            _log.info("config taken")


async def _take(path: Path, loaded: config.Loaded, gateway: Gateway) -> None:
    if loaded.listen is not None and (new := loaded.config.pools.keys() - gateway.pools_at_start):
        raise config.ConfigError(
            f"{path}:\nforebay.pools: Envoy, as it runs, does not know {', '.join(sorted(new))}; "
            "restart Envoy and the processor"
        )
    if loaded.config.admin != gateway.policy.config.admin:
        _log.warning("forebay.admin takes effect after a restart")
    await asyncio.to_thread(stores.warm_up, loaded.config.cache)
    await gateway.configure(loaded.config)


def _refuse(gateway: Gateway, why: str) -> None:
    gateway.metrics.reloads["refused"] += 1
    gateway.metrics.reload_successful.set(0)
    _log.error("config refused, the old one stays: %s", why)
