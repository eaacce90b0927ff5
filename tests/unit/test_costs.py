"""Costs and savings: the arithmetic, the sums, and what `forebay costs` shows of them."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from typer.testing import CliRunner, Result

from extproc.accounting import Account, Estimate, read
from extproc.cli import app
from extproc.config import (
    AdmissionConfig,
    Config,
    CostsConfig,
    PoolConfig,
    PriceConfig,
    TenantConfig,
)
from extproc.costs import Ledger
from extproc.costs.savings import LEVERS, cost_usd, repeated_usd, savings
from extproc.gateway import Gateway
from tests.unit.admin_port import admin_port
from tests.unit.logged import logged

SMALL = PriceConfig(input=0.1, cached_input=0.02, output=0.4)
LARGE = PriceConfig(input=0.9, cached_input=0.2, output=3.6)
COUNTED = Estimate()


def config(**changes: Any) -> Config:
    pools = {
        "small": PoolConfig(model="small-7b", slots=4, price=SMALL),
        "large": PoolConfig(model="large-70b", slots=2, price=LARGE),
        "bare": PoolConfig(model="bare-1b", slots=2),
    }
    given = {
        "pools": pools,
        "features": ("search",),
        "costs": CostsConfig(batch_price=0.5),
        "tenants": {"acme": TenantConfig(), "nightly": TenantConfig()},
        "admission": AdmissionConfig(on_overload=("shorter", "shed"), shorter_tokens=10),
    }
    return Config.model_validate(given | changes)


def account(
    pool: str = "small",
    *,
    prompt: object = 1000,
    cached: object = 0,
    completion: object = 100,
    bill: str = "search interactive - 1 0 0",
) -> Account:
    tags = {
        "kind": "json",
        "tenant": "acme",
        "prompt_tokens": str(prompt),
        "cached_tokens": str(cached),
        "completion_tokens": str(completion),
        "bill": f"{pool} 1 1 {bill} - acme",
    }
    made = read(logged(tags))
    assert made
    return made


def answered(
    ledger: Ledger,
    one: Account,
    *,
    pool: str = "small",
    tenant: str = "acme",
    status: int = 200,
    estimate: Estimate = COUNTED,
    of: Config | None = None,
) -> None:
    ledger.answered(
        of or config(), pool=pool, tenant=tenant, status=status, account=one, estimate=estimate
    )


def ledger_after(*accounts: Account, of: Config | None = None, pool: str = "small") -> Ledger:
    ledger = Ledger(0)
    for one in accounts:
        answered(ledger, one, pool=pool, of=of)
    return ledger


def saved(ledger: Ledger) -> dict[str, float]:
    return {lever: pytest.approx(usd) for (_, lever), usd in ledger.saved_usd().items()}


# --- one request -------------------------------------------------------------------------------


def test_cached_input_has_a_price_of_its_own() -> None:
    assert cost_usd(SMALL, 1000, 0, 100, 1.0) == pytest.approx(140e-6)
    assert cost_usd(SMALL, 1000, 800, 100, 1.0) == pytest.approx(76e-6)
    assert cost_usd(SMALL, 1000, 800, 100, 0.5) == pytest.approx(38e-6)


def test_each_lever_is_worth_what_it_alone_would_have_cost_more() -> None:
    paid = (SMALL, 1000, 800, 100, 0.5)
    paid_usd = cost_usd(*paid)
    found = savings(*paid, instead_of=LARGE, cut_tokens=20)
    assert found["routing"] == pytest.approx(cost_usd(LARGE, 1000, 800, 100, 0.5) - paid_usd)
    assert found["prefix_cache"] == pytest.approx(0.5 * 800 * 0.08e-6)
    assert found["output_cap"] == pytest.approx(0.5 * 20 * 0.4e-6)
    assert found["batch"] == pytest.approx(paid_usd)
    everything = cost_usd(LARGE, 1000, 0, 120, 1.0)
    assert paid_usd + sum(found.values()) == pytest.approx(everything)
    assert found["together"] > 0


def price(input_usd: float, cached_share: float, output: float) -> PriceConfig:
    return PriceConfig(input=input_usd, cached_input=input_usd * cached_share, output=output)


dollars, shares = st.floats(0.001, 100), st.floats(0, 1)
prices = st.builds(price, dollars, shares, dollars)
paid_for = st.builds(
    lambda price, prompt, cached, completion, factor: (
        *(price, prompt, prompt * cached // 100, completion, factor),
    ),
    prices,
    st.integers(1, 100_000),
    st.integers(0, 100),
    st.integers(0, 10_000),
    st.sampled_from([1.0, 0.5, 0.0]),
)
cuts = st.sampled_from([0.0, 1.5, 400.0])


@given(paid_for, st.one_of(st.none(), prices), cuts)
def test_cost_and_savings_are_the_cost_without_any_lever_and_none_is_negative(
    paid: Any, instead_of: PriceConfig | None, cut_tokens: float
) -> None:
    """Whatever the prices; where everything off would have been cheaper, nothing was saved."""
    found = savings(*paid, instead_of=instead_of, cut_tokens=cut_tokens)
    assert all(usd > 0 for usd in found.values())
    assert found.keys() <= LEVERS.keys()
    own_price, prompt, _, completion, _ = paid
    everything = cost_usd(instead_of or own_price, prompt, 0, completion + cut_tokens, 1.0)
    paid_usd = cost_usd(*paid)
    expected = pytest.approx(max(everything, paid_usd), rel=1e-6, abs=1e-11)
    assert paid_usd + sum(found.values()) == expected


@given(paid_for, st.floats(1, 10), cuts)
def test_where_the_other_pool_is_dearer_by_a_factor_each_lever_is_exact(
    paid: Any, dearer: float, cut_tokens: float
) -> None:
    own, prompt, cached, completion, factor = paid
    other = PriceConfig(
        input=own.input * dearer, cached_input=own.cached_input * dearer, output=own.output * dearer
    )
    found = savings(*paid, instead_of=other, cut_tokens=cut_tokens)
    for lever, without in {
        "routing": (other, prompt, cached, completion, factor),
        "prefix_cache": (own, prompt, 0, completion, factor),
        "output_cap": (own, prompt, cached, completion + cut_tokens, factor),
        "batch": (own, prompt, cached, completion, 1.0),
    }.items():
        alone = cost_usd(*without) - cost_usd(*paid)
        assert found.get(lever, 0.0) == pytest.approx(alone, rel=1e-6, abs=1e-11), lever


def test_a_lever_that_made_it_dearer_saved_nothing() -> None:
    assert savings(LARGE, 1000, 0, 100, 1.0, instead_of=SMALL) == {}


@pytest.mark.parametrize(
    ("prompt", "cached"), [(0, 0), (1, 0), (16, 0), (17, 16), (100, 96), (113, 112)]
)
def test_a_repeated_prompt_would_have_been_found_in_whole_blocks(prompt: int, cached: int) -> None:
    expected = cost_usd(SMALL, prompt, cached, 10, 1.0)
    assert repeated_usd(SMALL, prompt, 10, 1.0) == pytest.approx(expected)


# --- the sums ----------------------------------------------------------------------------------


def test_costs_are_kept_by_tenant_feature_model_and_pool() -> None:
    ledger = ledger_after(
        account(cached=800), account(), account(bill="unheard interactive - 1 0 0")
    )
    first, second = ledger.report().costs
    assert (first.tenant, first.feature, first.model, first.pool) == (
        *("acme", "search", "small-7b", "small"),
    )
    assert (first.requests, first.usd) == (2, pytest.approx(216e-6))
    tokens = first.tokens
    assert (tokens.input, tokens.cached_input, tokens.output) == (1200, 800, 200)
    assert (second.feature, second.requests) == ("other", 1)
    assert ledger.cost_usd() == {
        ("acme", "search", "small"): pytest.approx(216e-6),
        ("acme", "other", "small"): pytest.approx(140e-6),
    }


def test_a_server_that_says_more_cached_than_there_was_is_not_believed() -> None:
    (cost,) = ledger_after(account(prompt=10, cached=20)).report().costs
    assert (cost.tokens.input, cost.tokens.cached_input) == (0, 10)


def test_a_pool_without_a_price_has_tokens_and_says_that_it_has_no_cost() -> None:
    ledger = ledger_after(account("bare", cached=800), pool="bare")
    report = ledger.report()
    assert (report.costs[0].usd, report.costs[0].unpriced, report.usd) == (None, 1, 0)
    assert report.costs[0].tokens.output == 100
    assert not ledger.cost_usd()
    assert not ledger.saved_usd()


def test_a_stream_that_was_left_is_billed_by_estimate() -> None:
    ledger = Ledger(0)
    untold = account(prompt="-", completion="-")
    answered(ledger, untold, estimate=Estimate(prompt=500, cached=300, completion=1000))
    (cost,) = ledger.report().costs
    expected = 200 * SMALL.input + 300 * SMALL.cached_input + 1000 * SMALL.output
    assert cost.usd == pytest.approx(expected / 1e6)
    assert (cost.tokens.input, cost.tokens.cached_input, cost.tokens.output) == (0, 0, 0)
    assert (cost.input_estimated, cost.output_estimated) == (500, 1000)
    assert not ledger.saved_usd(), "an estimate is no saving"


@pytest.mark.parametrize(("status", "uncounted"), [(200, 1), (0, 1), (504, 1), (400, 0), (503, 0)])
def test_what_was_worked_on_and_not_counted_is_said(status: int, uncounted: int) -> None:
    ledger = Ledger(0)
    untold = account(prompt="-", completion="-")
    answered(ledger, untold, status=status)
    (cost,) = ledger.report().costs
    assert (cost.requests, cost.uncounted, cost.usd) == (1, uncounted, 0)


def test_only_the_pool_that_a_rule_chose_saves_by_routing() -> None:
    by_rule = "search interactive large 1 0 0"
    expected = cost_usd(LARGE, 1000, 0, 100, 1) - cost_usd(SMALL, 1000, 0, 100, 1)
    assert saved(ledger_after(account(bill=by_rule))) == {"routing": expected}
    assert not saved(ledger_after(account()))
    fell_back = account("large", bill=by_rule)
    assert not saved(ledger_after(fell_back)), "small served only since its first pool failed"
    assert not saved(ledger_after(account(bill="search interactive gone 1 0 0")))


def test_batch_saves_its_discount() -> None:
    ledger = ledger_after(account(bill="search batch - 1 0 0"))
    assert ledger.report().usd == pytest.approx(70e-6)
    assert saved(ledger) == {"batch": 70e-6}


CAPPED = "search interactive - 1 10 0"


def test_a_cap_saves_what_answers_without_it_lately_went_beyond_it() -> None:
    free = [account(completion=length) for length in (30, 50, 8)]
    per_token = SMALL.output / 1e6
    cut = account(completion=10, bill=CAPPED)
    assert not saved(ledger_after(cut)), "nothing is known yet"
    assert saved(ledger_after(*free, cut)) == {"output_cap": 30 * per_token}
    limited = [account(completion=24, bill="search interactive - 1 0 24"), *free]
    within = account(completion=10, bill="search interactive - 1 10 22")
    assert saved(ledger_after(*limited, within)) == {"output_cap": 12 * per_token}
    assert not saved(ledger_after(*free, within)), "none had such a limit"
    other_cap = account(completion=30, bill="search interactive - 1 30 0")
    assert saved(ledger_after(*free, other_cap)) == {"output_cap": 20 * per_token}
    choices = account(completion=20, bill="search interactive - 2 10 0")
    assert saved(ledger_after(*free, choices)) == {"output_cap": 60 * per_token}
    ended = account(completion=9, bill=CAPPED)
    assert not saved(ledger_after(*free, ended)), "it ended by itself"
    (saving,) = ledger_after(*free, cut).report().savings
    assert saving.estimated


def test_a_hit_saves_what_the_pool_would_have_taken() -> None:
    ledger = Ledger(0)
    for batch in (False, True):
        ledger.hit(
            config(),
            "exact_hit",
            pool="small",
            tenant="acme",
            batch=batch,
            prompt=17,
            completion=100,
        )
    once = (0.1 + 16 * 0.02 + 100 * 0.4) / 1e6
    assert saved(ledger) == {"exact_hit": 1.5 * once}
    ledger.hit(
        config(), "exact_hit", pool="bare", tenant="acme", batch=False, prompt=17, completion=100
    )
    assert ledger.report().savings[0].requests == 2


async def test_the_log_is_counted_into_costs_and_metrics() -> None:
    gateway = Gateway(config())
    tags = {
        "kind": "json",
        "tenant": "acme",
        "prompt_tokens": "1000",
        "cached_tokens": "800",
        "completion_tokens": "100",
        "bill": "small 1100 1000 search interactive large 1 0 0 - acme",
    }
    for served_by in ("small", "", "gone"):
        gateway.finished.account(
            logged(tags | {"status": "200", "served_by": served_by, "attempts": "1"})
        )
    report = gateway.ledger.report()
    assert (len(report.costs), report.costs[0].requests) == (1, 1)
    text = generate_latest(gateway.metrics.registry).decode()
    costs = dict(line.rsplit(" ", 1) for line in text.splitlines() if "_usd_total{" in line)
    assert {name: float(usd) for name, usd in costs.items()} == {
        'forebay_cost_usd_total{feature="search",pool="small",tenant="acme"}': report.usd,
        **{
            f'forebay_saved_usd_total{{lever="{one.lever}",tenant="acme"}}': one.usd
            for one in report.savings
        },
    }
    assert {one.lever for one in report.savings} == {"routing", "prefix_cache", "together"}


# --- the command -------------------------------------------------------------------------------


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["costs", *args])


def told() -> bytes:
    ledger, policy = Ledger(0), config()
    by_rule = account(cached=800, bill="search interactive large 1 0 0")
    long, cut = account("large", completion=5000), account("large", completion=10, bill=CAPPED)
    for tenant, pool, one in (
        ("acme", "small", by_rule),
        ("acme", "bare", account("bare")),
        ("acme", "small", account(completion="-")),
        ("nightly", "large", long),
        ("nightly", "large", cut),
    ):
        answered(ledger, one, pool=pool, tenant=tenant, of=policy)
    ledger.hit(
        policy, "exact_hit", pool="small", tenant="acme", batch=False, prompt=17, completion=100
    )
    return orjson.dumps(ledger.report())


def test_the_tables_have_the_largest_first_and_say_what_is_compared() -> None:
    with admin_port("/costs", told()) as url:
        shown = run("--from", url).stdout
    flat = " ".join(shown.split())
    assert "Costs since 1970-01-01T00:00:00+00:00" in flat
    assert shown.index("large-70b") < shown.index("small-7b") < shown.index("bare-1b")
    assert shown.index("output_cap*") < shown.index("routing") < shown.index("exact_hit")
    assert "no price" in flat
    assert "1 requests ended uncounted" in flat
    assert "1 requests went to pools without pools.NAME.price" in flat
    assert "*: an estimate" in flat


def test_a_tenants_report_is_its_own_and_json_is_the_same() -> None:
    with admin_port("/costs", told()) as url:
        acme = json.loads(run("--from", url, "--tenant", "acme", "--json").stdout)
        whole = json.loads(run("--from", url, "--json").stdout)
        nobody = run("--from", url, "--tenant", "ghost")
    assert {cost["tenant"] for cost in acme["costs"]} == {"acme"}
    assert {saving["lever"] for saving in acme["savings"]} == {
        *("routing", "prefix_cache", "together", "exact_hit"),
    }
    assert acme["usd"] < whole["usd"]
    for one in (acme, whole):
        *levers, last = one["savings"]
        assert last["lever"] == "together"
        dollars = [saving["usd"] for saving in levers]
        assert dollars == sorted(dollars, reverse=True)
        assert one["saved_usd"] == pytest.approx(sum(dollars) + last["usd"])
        assert all(saving["counterfactual"] for saving in one["savings"])
    assert nobody.exit_code == 1
    assert nobody.stderr.endswith("only for acme, nightly\n")


def test_a_gateway_that_cannot_be_read_is_one_sentence() -> None:
    with admin_port("/costs", b"{}") as url:
        odd = run("--from", url)
    for done, why in (
        (odd, "this is not a report of costs of Forebay"),
        (run("--from", url), "Is it running, and is this its admin port"),
        (run("--from", "127.0.0.1:9902"), "write http://host:port"),
    ):
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert why in done.stderr
