"""Watches the config file: a good change is taken without a restart, a bad one is refused whole."""

import asyncio
import logging
from pathlib import Path

from extproc import config
from extproc.gateway import Gateway

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


async def watch(path: Path, gateway: Gateway) -> None:
    """Run until cancelled. Looks at size, time and inode, also of a link's target (a ConfigMap)."""
    seen = _stamp(path)
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = _stamp(path)
        if now == seen:
            continue
        seen = now
        try:
            loaded = await asyncio.to_thread(config.load, path)
        except config.ConfigError as error:
            gateway.metrics.reloads.labels("refused").inc()
            gateway.metrics.reload_successful.set(0)
            _log.error("config refused, the old one stays: %s", error)
            continue
        if loaded.config.admin != gateway.policy.config.admin:
            _log.warning("forebay.admin takes effect after a restart")
        await gateway.configure(loaded.config)
        gateway.metrics.reloads.labels("taken").inc()
        gateway.metrics.reload_successful.set(1)
        _log.info("config taken")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
