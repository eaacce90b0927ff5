"""What a policy says in vain is warned of, and nothing else is."""

from typing import Any

import pytest

from extproc.check import check
from tests.unit.test_check_kit import reference

ON = {"exact": {"ttl": "1h"}}
REDIS = {"store": {"redis": {"url": "redis://h:1"}}, "when_away": "allow"}
PRICE = {"input": 1, "output": 2}


def found(**policy: Any) -> list[tuple[str, str, str]]:
    pool = policy.pop("pool", {})
    pools = {"small": {"model": "s", "slots": 1, **pool}}
    findings = check({"forebay": {"pools": pools, **policy}})
    return [(finding.severity, finding.rule, finding.place) for finding in findings]


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ({"admission": {"shorter_tokens": 9}}, "admission.shorter_tokens"),
        ({"admission": {"on_overload": ["cached", "shed"]}}, "admission.on_overload"),
        (
            {"admission": {"on_overload": ["shed"]}, "cache": {"exact": {"stale": "1m"}}},
            "cache.exact.stale",
        ),
        ({"admission": {"slo": {"ttft": "3s"}, "max_wait": "2s"}}, "admission.max_wait"),
        ({"admission": {"max_wait": "9s"}, "response": {"deadline": "9s"}}, "admission.max_wait"),
        ({"pool": {"partial_by": "guard"}, "response": {"stall": "3m"}}, "response.stall"),
        ({"response": {"stall": "5s"}}, "response.stall"),
        ({"costs": {"batch_price": 0.5}}, "costs.batch_price"),
        ({"cache": {"exact": None}}, "cache.exact"),
        ({"cache": {"exact": {}, "semantic": None}}, "cache.semantic"),
        ({"cache": {"store": {"redis": {"url": "redis://h:1"}}}}, "cache.store"),
        ({"tenants": {"a": {"cache": {"scope": "user"}}}}, "tenants.a.cache"),
        ({"cache": {"exact": {"ttl": "1m"}, "semantic": {"ttl": "2m"}}}, "cache.semantic.ttl"),
        ({"limits": {"store": {"redis": {"url": "redis://h:1"}}}}, "limits.store"),
        ({"limits": {"when_away": "refuse"}}, "limits.when_away"),
        ({"tenants": {"a": {"burst": "1s", "concurrent_requests": 1}}}, "tenants.a.burst"),
        ({"tenants": {"a": {"budget": {"usd": 1}}}}, "tenants.a.budget"),
    ],
)
def test_it_is_warned_of_with_its_key(policy: dict[str, Any], key: str) -> None:
    assert found(**policy) == [("warning", "no-effect", f"forebay.{key}")]


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"admission": {"on_overload": ["shorter", "shed"], "shorter_tokens": 9}},
        {"admission": {"on_overload": ["cached", "shed"]}, "cache": ON},
        {"cache": {"exact": {"stale": "1m"}}},
        {"admission": {"slo": {"ttft": "3s"}, "max_wait": "2s", "high_water": 4}},
        {"pool": {"partial_by": "guard"}, "response": {"stall": "5s"}},
        {"pool": {"price": PRICE}, "costs": {"batch_price": 0.5}},
        {"cache": {"store": "memory"}},
        {"cache": {"exact": {"ttl": "1m"}, "semantic": {}}},
        {"cache": ON, "tenants": {"a": {"cache": {"scope": "user"}}}},
        {"tenants": {"a": {"cache": {"exact": False}}}},
        {"limits": {"store": "memory"}, "tenants": {"a": {"concurrent_requests": 1}}},
        {"limits": REDIS, "tenants": {"default": {"tokens_per_minute": 1, "burst": "1s"}}},
        {"pool": {"price": PRICE}, "tenants": {"a": {"budget": {"usd": 1, "soft": 0.5}}}},
    ],
)
def test_what_has_an_effect_is_not(policy: dict[str, Any]) -> None:
    assert found(**policy) == []


def test_a_soft_mark_needs_the_small_pool() -> None:
    pools = {name: {"model": name, "slots": 1, "price": PRICE} for name in ("small", "large")}
    tenant = {"pools": ["large"], "budget": {"usd": 1, "soft": 0.5}}
    findings = check({"forebay": {"pools": pools, "tenants": {"a": tenant}}})
    assert [finding.place for finding in findings] == ["forebay.tenants.a.budget.soft"]


def test_nothing_in_the_reference_is_said_in_vain() -> None:
    assert "no-effect" not in {finding.rule for finding in check(reference().data)}
