"""Watches the config file: a good change is taken without a restart, a bad one is refused whole."""

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

from extproc import config, stores
from extproc.gateway import Gateway

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Stamp(NamedTuple):
    """By what a change shows, also of a link's target (a ConfigMap)."""

    modified_ns: int
    size: int
    inode: int


def stamp(path: Path) -> Stamp | None:
    """None: there is no such file. Take it before the file is read, or a change between the two is
    never seen."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)


async def watch(path: Path, seen: Stamp | None, gateway: Gateway) -> None:
    """Run until cancelled. `seen`: the stamp of the file as it is in use."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = stamp(path)
        if now == seen:
            continue
        seen = now
        try:
            await _take(path, gateway)
        except config.ConfigError as error:
            _refuse(gateway, str(error))
        except Exception as error:  # the watch itself must outlive whatever stands in a file
            _refuse(gateway, type(error).__name__)
        else:
            gateway.metrics.reloads["taken"] += 1
            gateway.metrics.reload_successful.set(1)
            _log.info("config taken")


async def _take(path: Path, gateway: Gateway) -> None:
    loaded = await asyncio.to_thread(config.load, path)
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
