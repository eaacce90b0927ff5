"""What `forebay bench overload` puts side by side: plain Envoy, Envoy's own filters, Forebay.

All stand before the same simulated server. The plain ones differ in one filter, Forebay's two in
their marks.
"""

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.contenders import KEY, raise_guard
from extproc.bench.lab import Lab

_TYPES = "type.googleapis.com/envoy.extensions.filters.http"
_NO_LIMITS = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 1_000_000)
_TRANSITIONS = "forebay_gate_transitions_total"

Edit = Callable[[Any], None]
"""Changes an Envoy config in place."""


@dataclass(frozen=True)
class Running:
    """A contender that answers."""

    url: str
    pids: dict[str, int]
    headers: dict[str, str] = field(default_factory=dict)
    transitions: Callable[[], float | None] = lambda: None
    """How often its gate has begun or ended to shed, since its start; None: it does not count."""


@dataclass(frozen=True)
class Contender:
    what: str
    settings: Callable[[int, float], dict[str, Any]]
    """What is specific to it, for so many slots and an SLO in seconds; stated in the result."""
    start: Callable[[Lab, str, str, int, dict[str, Any]], Running]
    """Given its name, the server's URL, the slots and the settings."""


def _plain(lab: Lab, name: str, server: str, slots: int, settings: dict[str, Any]) -> Running:
    """Envoy, with the filter of that name if there are settings for it."""
    url, pid = lab.envoy(name, server, edit=partial(_with_filter, name=name, settings=settings))
    return Running(url, {"envoy": pid})


def _with_filter(document: Any, *, name: str, settings: dict[str, Any]) -> None:
    resources = document["static_resources"]
    resources["clusters"][0]["circuit_breakers"] = {"thresholds": [_NO_LIMITS]}
    if not settings:
        return
    filters = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    kind = name.replace("-", "_")
    message = "".join(word.capitalize() for word in name.split("-"))
    filters["http_filters"].insert(
        0,
        {
            "name": f"envoy.filters.http.{kind}",
            "typed_config": {"@type": f"{_TYPES}.{kind}.v3.{message}", **settings},
        },
    )


def _forebay(lab: Lab, name: str, server: str, slots: int, settings: dict[str, Any]) -> Running:
    """The reference config with one pool, without its cache and its guard of 500 requests/s."""
    stack = lab.forebay(name, server, partial(_one_pool, slots=slots, admission=settings))
    return Running(
        stack.config.url,
        {part: stack.pid(part) for part in ("envoy", "processor")},
        {"x-api-key": KEY},
        lambda: metrics(stack.config.admin_url).get(_TRANSITIONS),
    )


def _one_pool(document: Any, *, slots: int, admission: dict[str, Any]) -> None:
    raise_guard(document)
    policy = document["node"]["metadata"]["forebay"]
    del policy["cache"]
    policy["pools"] = {"small": {"model": "asked", "slots": slots}}
    policy["routing"] = {}
    policy["admission"] |= admission


def _adaptive_concurrency(slots: int, _slo_s: float) -> dict[str, Any]:
    """The example of Envoy's documentation but for two: it measures its ideal latency with as many
    requests as there are slots (by default 3, which would starve the server), and renews its limit
    once a second (0.1 s would be one or two answers)."""
    return {
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "1s"},
            "min_rtt_calc_params": {
                "interval": "60s",
                "request_count": 50,
                "jitter": {"value": 10},
                "min_concurrency": slots,
            },
        }
    }


def _admission_control(_slots: int, _slo_s: float) -> dict[str, Any]:
    """Envoy's defaults, written out. An answer counts as a success by its status."""
    return {
        "sampling_window": "30s",
        "sr_threshold": {"default_value": {"value": 95}, "runtime_key": "bench.sr_threshold"},
        "aggression": {"default_value": 1.0, "runtime_key": "bench.aggression"},
        "success_criteria": {
            "http_criteria": {"http_success_status": [{"start": 100, "end": 500}]}
        },
    }


def _auto(_slots: int, slo_s: float) -> dict[str, Any]:
    return {"high_water": "auto", "low_water": "auto", "slo": {"ttft": f"{slo_s * 1000:g}ms"}}


CONTENDERS = {
    "envoy": Contender("plain Envoy, without limits", lambda *_: {}, _plain),
    "adaptive-concurrency": Contender(
        "Envoy's filter that limits requests in flight by the latency of whole answers",
        _adaptive_concurrency,
        _plain,
    ),
    "admission-control": Contender(
        "Envoy's filter that refuses as answers fail", _admission_control, _plain
    ),
    "fixed-threshold": Contender(
        "Forebay with one threshold set by habit",
        lambda *_: {"high_water": 64, "low_water": 63},
        _forebay,
    ),
    "forebay": Contender("Forebay", _auto, _forebay),
}


def metrics(url: str) -> dict[str, float]:
    """What a process shows at /metrics: name of the sample -> sum over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
