"""What a policy says in vain is warned of, and nothing else is."""

from typing import Any

import pytest

from extproc.check import check
from tests.unit.test_check_kit import reference

ON = {"exact": {"ttl": "1h"}}
REDIS = {"store": {"redis": {"url": "redis://h:1"}}, "when_away": "allow"}
PRICE = {"input": 1, "output": 2}

JUDGE = {"url": "http://j:1", "model": "j", "price": PRICE}
LEARNING = {"file": "x", "judge": JUDGE}


def two_pools(**policy: Any) -> dict[str, Any]:
    pools = {name: {"model": name, "slots": 1, "price": PRICE} for name in ("small", "large")}
    return {"pools": pools, **policy}


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
        ({"response": {"cap_to_deadline": True}}, "response.cap_to_deadline"),
        ({"admission": {"batch": {"spare": 0.2}}}, "admission.batch.spare"),
        (
            {
                "pool": {"server": "other"},
                "response": {"on_expiry": "cut"},
                "admission": {"batch": {"when_needed": "stop"}},
            },
            "admission.batch.when_needed",
        ),
        (
            {
                "pool": {"serves": "embeddings"},
                "response": {"paths": {"/v1/embeddings": {"on_expiry": "partial"}}},
            },
            "response.paths./v1/embeddings.on_expiry",
        ),
        (
            {"response": {"paths": {"/v1/embeddings": {"deadline": "5s"}}}},
            "response.paths./v1/embeddings",
        ),
        ({"cache": {"exact": None}}, "cache.exact"),
        ({"cache": {"exact": {}, "semantic": None}}, "cache.semantic"),
        ({"cache": {"store": {"redis": {"url": "redis://h:1"}}}}, "cache.store"),
        ({"tenants": {"a": {"cache": {"scope": "user"}}}}, "tenants.a.cache"),
        ({"cache": {"exact": {"ttl": "1m"}, "semantic": {"ttl": "2m"}}}, "cache.semantic.ttl"),
        ({"admission": {"on_overload": ["overflow", "shed"]}}, "admission.on_overload"),
        ({"tenants": {"a": {"priority": 1}}}, "tenants.a.priority"),
        (two_pools(routing={"difficulty": {"share": 0.2}}), "routing.difficulty.share"),
        (
            two_pools(routing={"difficulty": {"policy": "prior", "model_file": "x"}}),
            "routing.difficulty.model_file",
        ),
        ({"routing": {"difficulty": {"policy": "prior"}}}, "routing.difficulty"),
        (
            two_pools(
                routing={"difficulty": {"policy": "prior"}}, tenants={"default": {"pin": "small"}}
            ),
            "routing.difficulty",
        ),
        (
            two_pools(routing={"learning": LEARNING}, tenants={"default": {"pools": ["large"]}}),
            "routing.learning",
        ),
        (two_pools(tenants={"a": {"pin": "small", "pools": ["small"]}}), "tenants.a.pin"),
        ({"tenants": {"a": {"learning": False}}}, "tenants.a.learning"),
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
        {
            "pool": {"serves": "embeddings"},
            "response": {"paths": {"/v1/embeddings": {"deadline": "5s"}}},
        },
        {"pool": {"price": PRICE}, "costs": {"batch_price": 0.5}},
        {"cache": {"store": "memory"}},
        {"pool": {"server": "other"}, "response": {"cap_to_deadline": True}},
        {"response": {"cap_to_deadline": True, "on_expiry": "cut"}},
        {"pool": {"slots": 2}, "admission": {"batch": {"spare": 0.2, "when_needed": "stop"}}},
        {"pool": {"server": "other"}, "admission": {"batch": {"when_needed": "stop"}}},
        {"cache": {"exact": {"ttl": "1m"}, "semantic": {}}},
        {"cache": ON, "tenants": {"a": {"cache": {"scope": "user"}}}},
        {"tenants": {"a": {"cache": {"exact": False}}}},
        {"pool": {"priority": True}, "tenants": {"a": {"priority": 1}}},
        two_pools(routing={"difficulty": {"policy": "prior", "share": 0.2}}),
        two_pools(routing={"difficulty": {"policy": "learned", "share": 0.2, "model_file": "x"}}),
        two_pools(routing={"learning": LEARNING}, tenants={"a": {"pin": "small"}}),
        two_pools(routing={"learning": LEARNING}, tenants={"a": {"learning": False}}),
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
    tenant = {"pin": "large", "budget": {"usd": 1, "soft": 0.5}}
    findings = check({"forebay": {"pools": pools, "tenants": {"a": tenant}}})
    assert [finding.place for finding in findings] == ["forebay.tenants.a.budget.soft"]


def test_nothing_in_the_reference_is_said_in_vain() -> None:
    assert "no-effect" not in {finding.rule for finding in check(reference().data)}
