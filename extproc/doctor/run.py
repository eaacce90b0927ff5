"""The two readings and what follows from them. Must never load the gateway: two scrapes are all."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.admin_port import GatewayError
from extproc.doctor.diagnosis import Diagnosis, diagnose
from extproc.doctor.reading import Reading, read
from extproc.doctor.troubles import Trouble, troubles
from extproc.doctor.window import window


@dataclass(frozen=True, slots=True)
class Report:
    window_s: float | None
    """Between the readings; None: since the start of each process."""
    troubles: tuple[Trouble, ...]
    """Plainly wrong, whether anything is late or not."""
    pools: tuple[Diagnosis, ...]

    @property
    def well(self) -> bool:
        return not self.troubles and not any(pool.findings for pool in self.pools)


async def examine(
    admin_url: str,
    *,
    watch_s: float | None,
    pool: str | None = None,
    servers: Mapping[str, tuple[str, ...]] | None = None,
) -> Report:
    """`watch_s` None: what happened since the start. `pool` None: all. `servers`: URLs by pool, in
    place of those that the gateway knows. GatewayError."""
    given = servers or {}
    before: Reading | None = None
    if watch_s is not None:
        before = await read(admin_url, given)
        _known(before, pool, given)
        await asyncio.sleep(watch_s)
    after = await read(admin_url, given)
    _known(after, pool, given)
    names = [pool] if pool else list(after.status.pools)
    windows = [window(before, after, name, given) for name in names]
    return Report(
        window_s=after.at_s - before.at_s if before else None,
        troubles=troubles(windows, config_refused=after.config_refused),
        pools=tuple(diagnose(one) for one in windows),
    )


def _known(reading: Reading, pool: str | None, given: Mapping[str, tuple[str, ...]]) -> None:
    pools = reading.status.pools
    for name in (*([pool] if pool else ()), *given):
        if name not in pools:
            raise GatewayError(f"there is no pool {name}; the gateway has {', '.join(pools)}")
