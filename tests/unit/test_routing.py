"""Which pools a request may use: tenant, named model, rules, fallback, health."""

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import PoolConfig, RoutingConfig
from extproc.routing import Plan, Router, Unroutable, from_overflow, without
from extproc.routing.difficulty import Prior, Scored
from extproc.routing.rules import Judgement, judge

POOLS = {
    "small": PoolConfig(model="small-7b", slots=4, context=1000),
    "large": PoolConfig(model="large-70b", slots=2, context=4000),
    "hosted": PoolConfig(model="gpt-x", slots=8, overflow_only=True, server="other"),
}
ROUTING = RoutingConfig(
    small="small",
    large="large",
    fallback={"small": ("small", "large", "hosted"), "large": ("hosted",)},
)


def planned(
    text: str = "Hello",
    model: str = "auto",
    routing: RoutingConfig = ROUTING,
    **changes: object,
) -> Plan:
    router = Router(POOLS, routing)
    arguments: dict[str, object] = {
        "tokens_needed": 10,
        "latency_budget_ms": None,
        "allowed": tuple(POOLS),
        "down": (),
    }
    with suppress(Unroutable):  # then it knows what is usual
        router.plan(model=model, last_user_text=text, **arguments)  # type: ignore[arg-type]
    return router.plan(model=model, last_user_text=text, **(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "budget_ms", "size", "reason"),
    [
        ("Please compare A and B", 999, "small", "latency-budget"),
        ("Please compare A and B", 1000, "large", "word-compare"),
        ("Why is the sky blue?", None, "small", "short-question"),
        ("Explain why the sky is blue.", None, "large", "word-why"),
        ("ANALYSE this", None, "large", "word-analyse"),
        ("analyze this", None, "large", "word-analyze"),
        ("Design: a bridge", None, "large", "word-design"),
        ("redesign comparable designs", None, "small", "default"),  # whole words only
        ("Tell me a story", None, "small", "default"),
        ("word " * 18 + "why?", None, "small", "short-question"),  # 19 words
        ("word " * 19 + "why?", None, "large", "word-why"),  # 20 words
        ("", None, "small", "default"),
    ],
)
def test_the_first_rule_that_applies_decides(
    text: str, budget_ms: float | None, size: str, reason: str
) -> None:
    assert judge(text, budget_ms) == (size, reason)


@pytest.mark.parametrize(
    ("why", "given", "instead_of"),
    [
        ("a rule chose small", {}, "large"),
        ("a rule chose large", {"text": "Explain why"}, ""),
        ("the client chose", {"model": "small-7b"}, ""),
        ("large is not the tenant's", {"allowed": ("small", "hosted")}, ""),
        (
            "only since large is down",
            {"text": "Explain why", "down": ("large",)},
            "",
        ),
        ("small is down", {"down": ("small",)}, ""),
    ],
)
def test_a_plan_says_instead_of_which_pool_a_rule_took_another(
    why: str, given: dict[str, Any], instead_of: str
) -> None:
    assert planned(**given).instead_of == instead_of, why


def test_of_a_very_long_text_the_ends_are_judged() -> None:
    long = "a " * 1_000_000
    assert judge(long, None) == ("small", "default")
    assert judge(f"why {long}", None) == ("large", "word-why")
    assert judge(f"{long} design", None) == ("large", "word-design")
    assert judge(f"{long} why {long}?", None) == ("small", "default")


def test_auto_follows_the_rules_and_lists_the_fallback() -> None:
    expected = Plan(("small", "small", "large", "hosted"), "default", "small", (), "large")
    expected = expected._replace(overflow=("hosted",))
    assert planned("Hello") == expected
    small = ("small", "small", "large", "hosted")
    compared = Plan(("large", "hosted"), "word-compare", "large", small, "", ("hosted",))
    assert planned("Compare A and B") == compared


def test_there_is_a_smaller_pool_only_where_the_choice_was_ours_and_it_could_take_it() -> None:
    assert planned("Hello").smaller == ()
    assert planned("Compare A and B", down=("small",)).smaller == ()
    assert planned("Compare A and B", model=POOLS["large"].model).smaller == ()
    assert planned("Compare A and B", allowed=("large",)).smaller == ()
    assert planned("Compare A and B", tokens_needed=10**6).smaller == ()


def test_a_prompt_too_long_for_the_small_pool_goes_large() -> None:
    long = Plan(("large", "hosted"), "context", "large", overflow=("hosted",))
    assert planned("Hi?", tokens_needed=1001) == long
    assert planned("Hi?", tokens_needed=1001, latency_budget_ms=1).pools[0] == "large"


def test_a_later_tier_without_room_for_the_prompt_is_left_out() -> None:
    routing = RoutingConfig(small="small", large="large", fallback={"large": ("small", "hosted")})
    assert planned("why", tokens_needed=2000, routing=routing).pools == ("large", "hosted")


def test_a_model_named_by_the_client_is_honoured() -> None:
    assert planned("Compare", model="small-7b", tokens_needed=9999).pools[0] == "small"
    assert planned("Hi?", model="gpt-x").pools == ("hosted",)


def test_an_unknown_model_and_one_that_is_not_allowed_are_told_apart() -> None:
    with pytest.raises(Unroutable) as unknown:
        planned(model="gpt-9")
    assert unknown.value.why == "model_not_found"
    with pytest.raises(Unroutable) as forbidden:
        planned(model="large-70b", allowed=("small",))
    assert forbidden.value.why == "model_not_allowed"


def test_a_tenant_never_gets_a_pool_that_it_may_not_use() -> None:
    only_small = planned("Compare A and B", allowed=("small",))
    assert only_small == Plan(("small", "small"), "only-choice; tenant may not use large", "small")


def test_a_pool_that_is_down_leaves_the_list() -> None:
    down = planned("Hello", down=("small",))
    reason = "default; small is down"
    assert down == Plan(("large", "hosted"), reason, "small", overflow=("hosted",))


def test_overflow_is_to_the_pools_for_it_where_the_choice_was_ours() -> None:
    assert planned("Hello").overflow == ("hosted",)
    assert planned("Hello", model="small-7b").overflow == ()
    assert planned("Hello", allowed=("small", "large")).overflow == ()
    assert planned("Hello", down=("hosted",)).overflow == ()
    assert planned("Hello", down=("small", "large")).overflow == ()  # it is the first already
    assert from_overflow(planned("Hello"), "hosted") == ("hosted",)


def test_an_alias_is_a_pool_or_the_rules() -> None:
    routing = ROUTING.model_copy(update={"aliases": {"gpt-4o": "large", "default": "auto"}})
    assert planned(model="gpt-4o", routing=routing) == planned(model="large-70b")
    assert planned("Compare", model="default", routing=routing) == planned("Compare")
    with pytest.raises(Unroutable) as refused:
        Router(POOLS, routing).plan(
            model="gpt-4o",
            last_user_text="",
            tokens_needed=1,
            latency_budget_ms=None,
            allowed=("small",),
        )
    assert refused.value.why == "model_not_allowed"


def test_a_plan_can_do_without_some_pools() -> None:
    plan = planned("Hello")
    kept = without(plan, {"hosted"}, "it cannot")
    assert kept == plan._replace(pools=("small", "small", "large"), overflow=())
    named = planned(model="gpt-x", routing=ROUTING.model_copy(update={"fallback": {}}))
    assert without(named, {"hosted"}, "it cannot") is None
    first_gone = without(plan, {"small"}, "it cannot")
    assert first_gone
    assert first_gone.pools == ("large", "hosted")
    assert (first_gone.wanted, first_gone.reason) == ("large", "default; it cannot")
    assert without(plan, {"else"}, "it cannot") is plan


@given(
    text=st.sampled_from(["Hello", "Compare A and B"]),
    lists=st.fixed_dictionaries({name: st.lists(st.sampled_from(list(POOLS))) for name in POOLS}),
    others=st.sets(st.sampled_from(list(POOLS))),
)
def test_a_narrowed_plan_has_none_of_them_and_what_sheds_is_not_offered_to_itself(
    text: str, lists: dict[str, list[str]], others: set[str]
) -> None:
    routing = ROUTING.model_copy(update={"fallback": lists})
    plan = without(planned(text, routing=routing), others, "it cannot")
    if plan is None:
        return
    first = plan.pools[0]
    assert not others & {*plan.pools, *plan.smaller, *plan.overflow}
    assert plan.smaller[:1] != (first,)
    assert first not in plan.overflow
    assert plan.instead_of not in (*others, first)
    for pool in plan.overflow:
        assert from_overflow(plan, pool)[0] == pool


def test_where_the_choice_was_ours_it_is_made_among_those_that_can() -> None:
    routing = ROUTING.model_copy(update={"fallback": {}})
    for text, other, left in (("Compare A and B", "large", "small"), ("Hello", "small", "large")):
        plan = without(planned(text, routing=routing), {other}, "it cannot")
        assert plan
        assert (plan.pools, plan.wanted, plan.instead_of) == ((left,), left, "")
        named = planned(model=POOLS[other].model, routing=routing)
        assert without(named, {other}, "it cannot") is None


def test_a_smaller_pool_that_cannot_is_not_offered_where_all_others_can() -> None:
    routing = ROUTING.model_copy(update={"fallback": {}})
    plan = planned("Compare A and B", routing=routing)
    assert (plan.pools, plan.smaller) == (("large",), ("small",))
    assert without(plan, {"small"}, "it cannot") == plan._replace(smaller=())


def test_when_all_are_down_the_list_stays() -> None:
    assert planned("Hello", down=tuple(POOLS)).pools == ("small", "small", "large", "hosted")


@given(
    text=st.text(max_size=200),
    model=st.sampled_from(["auto", "small-7b", "large-70b", "gpt-x"]),
    allowed=st.lists(st.sampled_from(list(POOLS)), min_size=1, unique=True),
    tokens=st.integers(0, 10_000),
    budget=st.none() | st.floats(0, 5000),
    up=st.sets(st.sampled_from(list(POOLS))),
)
def test_every_plan_stays_within_the_tenants_pools(
    text: str, model: str, allowed: list[str], tokens: int, budget: float | None, up: set[str]
) -> None:
    try:
        made = planned(
            text,
            model,
            allowed=tuple(allowed),
            tokens_needed=tokens,
            latency_budget_ms=budget,
            down=set(POOLS) - up,
        )
    except Unroutable:
        assert model != "auto"
        return
    assert made.pools
    assert set(made.pools) <= set(allowed)
    assert made.reason
    if set(made.pools) & up:
        assert set(made.pools) <= up


# --- pins, budgets, and who is judged -------------------------------------------------------------


class Counting:
    """Says large, and counts how often it was asked."""

    def __init__(self) -> None:
        self.judged = self.looked = 0

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        self.judged += 1
        return Judgement("large", "counted")

    def look(self, text: str, latency_budget_ms: float | None) -> Judgement:
        self.looked += 1
        return Judgement("large", "counted")


def asked(router: Router, **changes: Any) -> Plan:
    arguments = {
        "model": "auto",
        "last_user_text": "Hello",
        "tokens_needed": 10,
        "latency_budget_ms": None,
        "allowed": tuple(POOLS),
    }
    return router.plan(**(arguments | changes))


@pytest.mark.parametrize("pin", ["small", "large", "hosted"])
def test_a_pin_takes_what_leaves_the_choice_to_us_whatever_it_asks(pin: str) -> None:
    for asks in ({}, {"text": "Compare"}, {"latency_budget_ms": 5}, {"tokens_needed": 10**6}):
        made = planned(pin=pin, **asks)
        assert (made.pools[0], made.reason) == (pin, "pin")
        assert (made.smaller, made.instead_of) == ((), ""), "it is no choice of a rule"


def test_a_pinned_pool_has_its_fallback_and_may_be_down() -> None:
    assert planned(pin="small").pools == ("small", "small", "large", "hosted")
    assert planned(pin="large", down=("large",)).reason == "pin; large is down"


def test_a_model_that_the_client_names_goes_before_a_pin() -> None:
    assert planned(model="small-7b", pin="large")[:2] == (
        ("small", "small", "large", "hosted"),
        "client-model",
    )


def test_the_frugal_get_the_small_pool_unless_something_else_was_willed_or_it_does_not_fit() -> (
    None
):
    assert planned("Compare", frugal=True)[:3] == (
        ("small", "small", "large", "hosted"),
        "budget",
        "small",
    )
    assert planned("Compare", frugal=True, pin="large").reason == "pin"
    assert planned("Compare", frugal=True, model="large-70b").reason == "client-model"
    assert planned("Compare", frugal=True, tokens_needed=1001).reason == "context"


@pytest.mark.parametrize(
    ("given", "reason", "times"),
    [
        ({}, "counted", 1),
        ({"down": ("large",)}, "counted", 1),
        ({"tokens_needed": 1001}, "context", 0),
        ({"model": "small-7b"}, "client-model", 0),
        ({"pin": "large"}, "pin", 0),
        ({"frugal": True}, "budget", 0),
        ({"allowed": ("small", "hosted")}, "only-choice", 0),
        ({"allowed": ("large",)}, "only-choice", 0),
        ({"allowed": ("hosted",)}, "only-choice", 0),
    ],
)
def test_judged_once_is_what_may_go_either_way_and_nothing_else(
    given: dict[str, Any], reason: str, times: int
) -> None:
    judge = Counting()
    plan = asked(Router(POOLS, ROUTING, judge), **given)
    assert (plan.rule, judge.judged, judge.looked) == (reason, times, 0)
    assert plan.judged == bool(times)


def test_looking_at_a_request_counts_nothing() -> None:
    judge = Counting()
    router = Router(POOLS, ROUTING, judge)
    assert asked(router, counts=False) == asked(router)
    assert (judge.judged, judge.looked) == (1, 1)


def test_a_tenant_with_a_third_pool_instead_of_one_of_the_two_still_has_a_choice() -> None:
    pools = POOLS | {"middle": PoolConfig(model="mid", slots=1)}
    router = Router(pools, ROUTING, Counting())
    plan = asked(router, allowed=("middle", "small"))
    assert plan[:2] == (("middle",), "counted; tenant may not use large")


def test_with_one_pool_there_is_nothing_to_judge() -> None:
    routing = RoutingConfig(small="small", large="small")
    assert asked(Router(POOLS, routing, Counting())).reason == "only-choice"


def test_requests_that_are_not_judged_are_no_part_of_the_share() -> None:
    router = Router(POOLS, ROUTING, Scored(Prior(), 0.5))
    pools: list[str] = []
    for number in range(400):
        for other in ({"pin": "large"}, {"frugal": True}, {"latency_budget_ms": 3.0}):
            asked(router, last_user_text="What is 2 + 3 * 4?", **other)
        asked(router, last_user_text="x = 1 + 2 + 3", counts=False)
        pools.append(asked(router, last_user_text="word " * (number % 7)).pools[0])
    assert abs(pools.count("large") / len(pools) - 0.5) < 0.13  # (1 + step) / (step x 400)


OLD = re.compile(r"\b(compare|analyse|analyze|why|design)\b", re.IGNORECASE)


@given(st.text(alphabet="compare whydsignlzé_1.\n-WHY", max_size=60) | st.text(max_size=60))
def test_whole_words_are_those_of_a_regular_expression(text: str) -> None:
    found = OLD.search(text)
    expected = f"word-{found[1].lower()}" if found else "default"
    assert judge(text.replace("?", ""), None).reason == expected or "ſ" in text


def test_a_text_made_of_parts_of_words_is_not_looked_through_to_its_end() -> None:
    assert judge("whyx " * 199 + "why", None).reason == "word-why"
    assert judge("whyx " * 200 + "why", None).reason == "default"


def test_of_a_long_text_the_middle_is_not_looked_at() -> None:
    ends = "word " * 1000
    assert judge(f"{ends} why {ends}", None).reason == "default"
    assert judge(f"why {ends}{ends}", None).reason == "word-why"
    assert judge(f"{ends}{ends} why", None).reason == "word-why"
