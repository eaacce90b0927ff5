"""`forebay route`: what it says is what a gateway would do, and it never says the prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from extproc.cli import app
from extproc.config import Config
from extproc.decision.facts import Decision, Refused
from extproc.decision.report import Asked, Undecided, decide
from extproc.routing import Router, prior
from extproc.routing.difficulty import Prior, Scored
from extproc.routing.features import features
from extproc.routing.learned import Trees
from tests.unit.test_difficulty import HARD, model, read_model

SECRET = "SECRET-77aa"
PRICE = {"input": 1, "output": 2}
POLICY: dict[str, Any] = {
    "pools": {
        "small": {"model": "s", "slots": 1, "context": 1000, "price": PRICE},
        "large": {"model": "l", "slots": 1, "price": {"input": 10, "output": 20}},
        "hosted": {"model": "h", "slots": 1, "overflow_only": True},
    },
    "routing": {"fallback": {"small": ["large"], "large": ["hosted"]}},
    "tenants": {
        "acme": {"pin": "large"},
        "poor": {"pools": ["small"]},
        "night": {"class": "batch"},
    },
    "costs": {"batch_price": 0.5},
}


def config(**difficulty: Any) -> Config:
    routing = POLICY["routing"] | {"difficulty": difficulty}
    return Config.model_validate(POLICY | {"routing": routing})


def body(text: str = "Tell me a story", **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "auto", "messages": messages, **more}).encode()


def decided(asked: Asked, **difficulty: Any) -> Decision:
    found = decide(config(**difficulty), asked)
    assert isinstance(found, Decision)
    return found


def test_a_share_depends_on_the_traffic_so_both_ways_are_said() -> None:
    found = decided(Asked(body(HARD)), policy="prior", share=0.2)
    assert [(way.tiers, way.reason) for way in found.ways] == [
        (("large", "hosted"), "prior-hard"),
        (("small", "large"), "prior-easy"),
    ]
    assert "hardest 20%" in found.ways[0].when
    assert found.ways[0].if_shed == ("the smaller pool: small, large", "429 overloaded")
    assert found.score
    assert found.score.score == pytest.approx(prior.score(features(HARD)))
    assert sum(found.score.parts.values()) == pytest.approx(found.score.score)
    assert found.score.usual_rank is None


def test_a_learned_score_is_put_among_those_of_the_models_evidence(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    file.write_text(json.dumps(model(usual={"edges": [0.0, 30.0], "shares": [0.6, 0.3, 0.1]})))
    found = decided(Asked(body(HARD)), policy="learned", model_file=str(file))
    trees = Trees(read_model().base, read_model().trees)
    assert found.score
    assert found.score.score == pytest.approx(trees.score(features(HARD)))
    low, high = found.score.usual_rank or (0, 0)
    assert (low, high) == (pytest.approx(0.9), pytest.approx(1.0))
    assert set(found.score.parts) == {"numbers", "chars"}
    of_all_leaves = -1.0 + 40 * 0.75
    assert sum(found.score.parts.values()) + of_all_leaves == pytest.approx(found.score.score)


@pytest.mark.parametrize(
    ("asked", "difficulty", "tiers", "reason"),
    [
        (Asked(body("Compare A")), {}, ("large", "hosted"), "word-compare"),
        (Asked(body()), {}, ("small", "large"), "default"),
        (Asked(body(HARD)), {"policy": "off"}, ("small", "large"), "default"),
        (Asked(body(), tenant="acme"), {"policy": "prior"}, ("large", "hosted"), "pin"),
        (Asked(body(model="h"), tenant="acme"), {}, ("hosted",), "client-model"),
        (Asked(body(max_tokens=5000)), {"policy": "prior"}, ("large", "hosted"), "context"),
        (
            Asked(body(HARD), latency_budget_ms=10),
            {"policy": "prior"},
            ("small", "large"),
            "latency-budget",
        ),
        (
            Asked(body(), tenant="poor"),
            {"policy": "prior"},
            ("small",),
            "only-choice; tenant may not use large",
        ),
        (Asked(body(), down=frozenset({"small"})), {}, ("large",), "default; small is down"),
    ],
)
def test_one_way_where_there_is_only_one(
    asked: Asked, difficulty: dict[str, Any], tiers: tuple[str, ...], reason: str
) -> None:
    found = decided(asked, **difficulty)
    assert [(way.when, way.tiers, way.reason) for way in found.ways] == [("", tiers, reason)]
    assert found.score is None


@given(
    text=st.sampled_from([HARD, "Hi?", "word " * 300]),
    latency=st.none() | st.sampled_from([5.0, 5000.0]),
    tenant=st.none() | st.sampled_from(["acme", "poor", "night"]),
    down=st.frozensets(st.sampled_from(["small", "large"]), max_size=1),
)
def test_what_a_gateway_does_is_one_of_the_ways(
    text: str, latency: float | None, tenant: str | None, down: frozenset[str]
) -> None:
    from extproc.openai import parse
    from extproc.tenants import Tenants

    policy = config(policy="prior")
    asked = Asked(body(text), tenant=tenant, latency_budget_ms=latency, down=down)
    found = decided(asked, policy="prior")
    router = Router(policy.pools, policy.routing, Scored(Prior(), 0.3))
    request, owner = parse(asked.path, asked.body), Tenants(policy).resolve(tenant)
    for _ in range(4):
        plan = router.plan(
            model="auto",
            last_user_text=text,
            tokens_needed=request.prompt_tokens_estimate,
            latency_budget_ms=latency,
            allowed=owner.pools,
            pin=owner.pin,
            down=down,
        )
        assert (plan.pools, plan.reason) in [(way.tiers, way.reason) for way in found.ways]


def decided_by(policy: dict[str, Any], asked: Asked) -> Decision | Refused:
    return decide(Config.model_validate(POLICY | policy), asked)


def test_what_overflows_is_said_where_a_pool_sheds() -> None:
    found = decided_by({"admission": {"on_overload": ["overflow", "shed"]}}, Asked(body("Why?")))
    assert isinstance(found, Decision)
    assert found.ways[0].if_shed == ("429 overloaded",), "small does not fall back to hosted"
    found = decided_by(
        {"admission": {"on_overload": ["overflow", "shed"]}}, Asked(body("Compare these two"))
    )
    assert isinstance(found, Decision)
    assert found.ways[0].if_shed == ("overflow: hosted", "429 overloaded")


def test_embeddings_go_to_the_pools_that_serve_them() -> None:
    vectors = {"vectors": {"model": "v", "slots": 1, "serves": "embeddings"}}
    policy = {"pools": POLICY["pools"] | vectors, "cache": {"exact": {}}}
    for_it = json.dumps({"model": "auto", "input": ["a", "b"]}).encode()
    found = decided_by(policy, Asked(for_it, path="/v1/embeddings"))
    assert isinstance(found, Decision)
    assert [(way.tiers, way.reason) for way in found.ways] == [(("vectors",), "embeddings")]
    assert [pool.pool for pool in found.pools if pool.allowed] == ["vectors"]
    assert found.ways[0].if_shed == ("429 overloaded",), "vectors are never cached"
    elsewhere = decided_by(policy, Asked(body(model="v")))
    assert isinstance(elsewhere, Refused)
    assert (elsewhere.status, elsewhere.code) == (400, "model_not_served_here")
    none = decided_by({}, Asked(for_it, path="/v1/embeddings"))
    assert isinstance(none, Refused)
    assert (none.status, none.code) == (404, "model_not_found")


def test_what_only_vllm_knows_goes_to_vllm_alone() -> None:
    hosted = {"model": "h", "slots": 1, "overflow_only": True, "server": "other"}
    policy = {"pools": POLICY["pools"] | {"hosted": hosted}}
    found = decided_by(policy, Asked(body("Compare these", guided_json={})))
    assert isinstance(found, Decision)
    assert found.ways[0].tiers == ("large",)
    refused = decided_by(policy, Asked(body(model="h", guided_json={})))
    assert isinstance(refused, Refused)
    assert (refused.status, "`guided_json`" in refused.message) == (400, True)


def test_a_tenants_caps_its_class_and_its_budget_are_said() -> None:
    tenant = {"class": "batch", "max_output_tokens": 10, "budget": {"usd": 1, "soft": 0.5}}
    policy = {"tenants": {"acme": tenant}, "response": {"cap_to_deadline": True}}
    found = decided_by(policy, Asked(body("Compare these", max_tokens=50), tenant="acme"))
    assert isinstance(found, Decision)
    assert found.completion_tokens == 10
    assert found.caps == (
        "it has to have ended 120 s after it got its slot (deadline)",
        "10 tokens an answer (the tenant's max_output_tokens)",
        "what fits before the deadline, if it could only be cut (cap_to_deadline)",
    )
    assert [(way.when, way.tiers[0], way.reason) for way in found.ways] == [
        ("if over 50% of its budget is spent", "small", "budget"),
        ("if not", "large", "word-compare"),
    ]


def test_costs_are_those_of_each_pool_and_half_for_batch_here() -> None:
    def usd(asked: Asked) -> list[float | None]:
        return [pool.usd for pool in decided(asked).pools]

    of_ten = Asked(body("x" * 24, max_tokens=20))  # 6 tokens and 4 for the message
    assert usd(of_ten) == [pytest.approx(50e-6), pytest.approx(500e-6), None]
    batch = Asked(of_ten.body, tenant="night")
    assert usd(batch) == [pytest.approx(25e-6), pytest.approx(250e-6), None]
    assert usd(Asked(of_ten.body, request_class="batch")) == usd(batch)


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (Asked(b"{"), 400, "invalid_request"),
        (Asked(body(), path="/v1/x"), 404, "unknown_url"),
        (Asked(body(model="gpt-9")), 404, "model_not_found"),
        (Asked(body(model="l"), tenant="poor"), 403, "model_not_allowed"),
    ],
)
def test_what_is_refused_is_told_as_a_client_would_be(asked: Asked, status: int, code: str) -> None:
    found = decide(config(), asked)
    assert isinstance(found, Refused)
    assert (found.status, found.code) == (status, code)


def test_an_unknown_tenant_may_be_refused() -> None:
    strict = Config.model_validate(POLICY | {"unknown_tenant": "refuse"})
    assert isinstance(decide(strict, Asked(body(), tenant="x")), Refused)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(body(), down=frozenset({"x"})), "--down x: no pool is named so"),
        (Asked(body(), request_class="slow"), "--class slow: write one of interactive, batch"),
    ],
)
def test_a_wrong_question_is_told(asked: Asked, why: str) -> None:
    with pytest.raises(Undecided, match=why):
        decide(config(), asked)


@pytest.mark.parametrize("more", [[], ["--json"], ["--tenant", "acme"], ["--down", "small"]])
def test_the_command_shows_it_without_the_prompt(tmp_path: Path, more: list[str]) -> None:
    policy = tmp_path / "policy.yaml"
    routing = {"difficulty": {"policy": "prior"}}
    policy.write_text(json.dumps({"forebay": POLICY | {"routing": routing}}))
    request = tmp_path / "request.json"
    request.write_bytes(body(f"Compute 3 * 4 {SECRET}", stream=True))
    told = CliRunner().invoke(app, ["route", str(request), "--config", str(policy), *more])
    assert told.exit_code == 0, told.output
    assert SECRET not in told.output
    assert "large" in told.output
    if more == ["--json"]:
        assert json.loads(told.stdout)["score"]["policy"] == "prior"
    request.write_bytes(b'{"model": "auto", "messages": "%s"}' % SECRET.encode())
    told = CliRunner().invoke(app, ["route", str(request), "--config", str(policy), *more])
    assert told.exit_code == 1, "it is refused"
    assert SECRET not in told.output
    assert "invalid_request" in told.output


def test_the_command_says_what_is_wrong_with_the_config(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_bytes(body())
    told = CliRunner().invoke(app, ["route", str(request), "--config", str(tmp_path / "no.yaml")])
    assert told.exit_code == 2
    assert "no.yaml: cannot be read" in told.output
