"""What the gateway and its servers say of themselves at one moment. Only reads, each bounded.

Must never give up for one silent server: what could not be read is named, the rest is there.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import aiohttp
from pydantic import TypeAdapter

from extproc.admin_port import GatewayError, checked, no_answer, parsed
from extproc.doctor.histogram import NONE, Histogram
from extproc.doctor.samples import Samples

_LIMIT_S = 5.0
_LIMIT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slo:
    ttft_s: float
    tpot_s: float
    percentile: float
    """The share of the answers that is to hold them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Of a pool in /status."""

    server: str
    endpoints: list[str]
    slots: int
    replicas_up: int
    in_flight: int
    queue_depth: int
    high_water: int
    shedding: bool

    @property
    def replicas_down(self) -> int:
        """Those that do not answer the gateway, or that it leaves alone after bad answers."""
        return len(self.endpoints) - self.replicas_up


@dataclass(frozen=True, slots=True)
class Status:
    """The part of /status that is read; see Gateway.status."""

    slo: Slo
    pools: dict[str, Pool]


@dataclass(frozen=True, slots=True)
class GatewayCounts:
    """Of one pool, since the processor's start. Times in seconds."""

    ttft: Histogram = NONE
    tpot: Histogram = NONE
    queue_wait: Histogram = NONE
    answers: float = 0.0
    attempts: float = 0.0
    served: float = 0.0
    """Answers with status 200."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Tries that its servers refused for what the gateway sent, by status: see extproc.refused."""


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Of one vLLM server, since its start, over all its engines. A name that it does not have is
    0. Of a request, `queue`, `prefill`, `tpot` and `prompt_tokens` are told at its end, `ttft`,
    `gaps` and `steps` at once. Times in seconds."""

    ttft: Histogram = NONE
    gaps: Histogram = NONE
    """Between two tokens of one answer."""
    tpot: Histogram = NONE
    queue: Histogram = NONE
    prefill: Histogram = NONE
    prompt_tokens: Histogram = NONE
    steps: Histogram = NONE
    """Tokens computed in an engine step that told one; a prompt counts whole in that of its first
    token, without what was cached."""
    generated: float = 0.0
    preemptions: float = 0.0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0

    @property
    def answers_in_a_step(self) -> float | None:
        """On average: tokens told by steps that told any; None without. (With speculative decoding
        a step tells several of one answer, and this is too high.)"""
        return self.generated / self.steps.count if self.steps.count else None

    @property
    def prompt_tokens_in_a_step(self) -> float:
        """On average, without those that were cached; 0 without steps."""
        steps = self.steps
        return max(0.0, steps.sum - self.generated) / steps.count if steps.count else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Of the prompt tokens, the share that the prefix cache had."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


@dataclass(frozen=True, slots=True)
class Server:
    counts: ServerCounts
    kv_usage: float | None
    """Of the fullest engine, now: 1 is full."""
    missing: tuple[str, ...] = ()
    """Names that it should have and does not: another version, or some metrics are off."""


@dataclass(frozen=True, slots=True)
class Reading:
    at_s: float
    """On the clock of this process, when it was complete."""
    status: Status
    config_refused: bool
    """The config file as it is now is not in use."""
    pools: Mapping[str, GatewayCounts]
    servers: Mapping[str, Server | str]
    """By URL; a sentence where the server could not be read."""


_STATUS = TypeAdapter(Status)

# The names of vLLM 0.32, by the field of ServerCounts.
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "gaps": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "prompt_tokens": "vllm:request_prompt_tokens",
    "steps": "vllm:iteration_tokens_total",
}
_COUNTERS = {
    "generated": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
}


async def read(admin_url: str, given: Mapping[str, tuple[str, ...]]) -> Reading:
    """`given`: server URLs by pool, instead of what /status says. GatewayError."""
    admin_url = checked(admin_url)
    # trust_env stays off: no proxy has business with admin ports.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S)) as session:
        texts = await asyncio.gather(
            _of_gateway(session, f"{admin_url}/status"),
            _of_gateway(session, f"{admin_url}/metrics"),
        )
        url = f"{admin_url}/status"
        status = parsed(texts[0], _STATUS, url, "a status of this Forebay")
        urls = {url for pool in status.pools for url in servers_of(status, pool, given)}
        servers = dict(await asyncio.gather(*(_server(session, url) for url in sorted(urls))))
    try:
        samples = Samples(texts[1])
        pools = {pool: gateway_counts(samples, pool) for pool in status.pools}
        config_refused = samples.highest("forebay_config_last_reload_successful") == 0
    except (ValueError, KeyError) as error:
        raise GatewayError(f"{admin_url}/metrics: not Prometheus' format ({error})") from error
    return Reading(time.monotonic(), status, config_refused, pools, servers)


def servers_of(status: Status, pool: str, given: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The servers of a pool whose metrics can be asked for: none of a pool that is no vLLM."""
    if pool in given:
        return given[pool]
    known = status.pools[pool]
    return tuple(known.endpoints) if known.server == "vllm" else ()


def gateway_counts(samples: Samples, pool: str) -> GatewayCounts:
    return GatewayCounts(
        ttft=samples.histogram("forebay_ttft_seconds", pool=pool),
        tpot=samples.histogram("forebay_tpot_seconds", pool=pool),
        queue_wait=samples.histogram("forebay_queue_wait_seconds", pool=pool),
        answers=samples.total("forebay_answers_total", pool=pool),
        attempts=samples.total("forebay_attempts_total", pool=pool),
        served=samples.total("forebay_answers_total", pool=pool, status="200"),
        refused=samples.by("status", "forebay_refused_tries_total", pool=pool),
    )


def server(samples: Samples) -> Server:
    """ValueError if this is no vLLM."""
    if "vllm:num_requests_running" not in samples:
        raise ValueError("there is no vllm:num_requests_running in it")
    counts: dict[str, Any] = {
        **{field: samples.histogram(name) for field, name in _HISTOGRAMS.items()},
        **{field: samples.total(name) for field, name in _COUNTERS.items()},
    }
    wanted = (*(f"{name}_bucket" for name in _HISTOGRAMS.values()), *_COUNTERS.values())
    missing = tuple(name for name in wanted if name not in samples)
    return Server(ServerCounts(**counts), samples.highest("vllm:kv_cache_usage_perc"), missing)


def together(servers: Iterable[ServerCounts]) -> ServerCounts:
    """The sums over several servers."""
    names = [each.name for each in fields(ServerCounts)]
    total = ServerCounts()
    for one in servers:
        total = ServerCounts(*(getattr(total, name) + getattr(one, name) for name in names))
    return total


async def _of_gateway(session: aiohttp.ClientSession, url: str) -> str:
    try:
        return await _get(session, url)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise no_answer(url, _why(error)) from error


async def _server(session: aiohttp.ClientSession, url: str) -> tuple[str, Server | str]:
    try:
        return url, server(Samples(await _get(session, f"{url}/metrics")))
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        return url, f"{url}/metrics cannot be read ({_why(error)})"


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    """OSError when it takes too long, ValueError for another answer than 200 or too long a one."""
    text = bytearray()
    async with session.get(url) as answer:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        async for piece in answer.content.iter_any():
            text += piece
            if len(text) > _LIMIT_BYTES:
                raise ValueError(f"more than {_LIMIT_BYTES} bytes")
    return text.decode()


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_LIMIT_S:g} s"
    return str(error) or type(error).__name__
