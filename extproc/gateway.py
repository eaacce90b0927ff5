"""What all exchanges share: the policy, a limiter for each pool, the backends, the metrics."""

import asyncio

from extproc.accounting import read as read_account
from extproc.admission import Gate, Limiter
from extproc.backends import Backends
from extproc.config import Config
from extproc.metrics import Metrics
from extproc.wire import LogEntry


class Gateway:
    def __init__(self, config: Config) -> None:
        self.config = config
        clock = asyncio.get_running_loop().time
        marks = config.admission
        self.pools = {
            name: Limiter(pool.slots, Gate(marks.high_water, marks.low_water), clock)
            for name, pool in config.pools.items()
        }
        self.backends = Backends(config.pools)
        self.metrics = Metrics(self.pools)

    def account(self, entry: LogEntry) -> None:
        """Count one finished exchange from Envoy's access log."""
        account = read_account(entry.tags)
        if account is None:
            return
        known = self.config
        pool = entry.served_by if entry.served_by in known.pools else "none"
        tenant = account.tenant if account.tenant in known.tenants else "default"
        metrics = self.metrics
        metrics.answers.labels(pool, str(entry.status), tenant).inc()
        metrics.attempts.labels(pool).inc(entry.attempts)
        for kind, count in (
            ("prompt", account.prompt_tokens),
            ("cached", account.cached_tokens),
            ("completion", account.completion_tokens),
        ):
            if count:
                metrics.tokens.labels(pool, tenant, kind).inc(count)
        if entry.status == 200 and account.ttft_s is not None:
            metrics.ttft.labels(pool).observe(account.ttft_s)
        if entry.status == 200 and account.tpot_s is not None:
            metrics.tpot.labels(pool).observe(account.tpot_s)

    def status(self) -> dict[str, object]:
        """What /status shows."""
        return {
            "pools": {
                name: {
                    "model": self.config.pools[name].model,
                    "up": self.backends.is_up(name),
                    "slots": limiter.slots,
                    "in_flight": limiter.in_flight,
                    "queue_depth": limiter.depth,
                    "high_water": limiter.gate.high_water,
                    "low_water": limiter.gate.low_water,
                    "shedding": limiter.gate.shedding,
                    "mean_service_s": round(limiter.mean_service_s, 3),
                }
                for name, limiter in self.pools.items()
            }
        }
