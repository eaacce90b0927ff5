"""What is estimated of answers that nobody counted, and what such an estimate learns from."""

from typing import Any

import pytest

from extproc.config import Config, PoolConfig
from extproc.finished import Finished
from extproc.gateway import Gateway
from tests.unit.logged import logged

SERVED = {"status": "200", "served_by": "small", "attempts": "1"}
STREAM = {
    "kind": "stream",
    "tenant": "default",
    "prompt_tokens": "100",
    "cached_tokens": "25",
    "completion_tokens": "10",
    "body_bytes": "1000",
    "upstream_host": "127.0.0.1:1",
    "bill": "small 300 50 other interactive - 1 0 0 - acme",
}
CUT = {"prompt_tokens": "-", "cached_tokens": "-", "completion_tokens": "-"}
JSON = {"kind": "json", "body_bytes": "-"}


def gateway() -> Gateway:
    pools = {"small": PoolConfig.model_validate({"model": "small-7b", "slots": 4})}
    return Gateway(Config.model_validate({"pools": pools}))


def estimated(changes: dict[str, str], status: int = 200, learned: bool = True) -> dict[str, float]:
    """Of one exchange with these tags: what of it is estimated, by kind."""
    made = gateway()
    if learned:
        made.finished.account(logged(SERVED | STREAM))
    made.finished.account(logged(SERVED | STREAM | CUT | changes | {"status": str(status)}))
    tokens: Any = made.metrics.tokens
    return {k[2]: count for k, count in tokens.items() if k[2].endswith("_estimated")}


async def test_a_cut_stream_is_estimated_by_its_text_its_bytes_and_the_pools_counted_ones() -> None:
    bill = "small 300 200 other interactive - 1 0 0 - acme"
    found = estimated({"body_bytes": "3000", "bill": bill})
    assert found == {"prompt_estimated": 400, "completion_estimated": 30}


async def test_before_anything_was_counted_only_the_prompt_has_an_estimate() -> None:
    assert estimated({}, learned=False) == {"prompt_estimated": 50}


async def test_what_the_guard_saw_is_the_estimate_of_the_output() -> None:
    assert estimated({"guarded": "stall - - - 7"}) == {
        "prompt_estimated": 100,
        "completion_estimated": 7,
    }
    assert estimated({"guarded": "upstream_error - - - 0"}) == {}, "nothing was generated"


async def test_the_time_of_a_token_is_learned_of_streams_and_of_long_json_answers() -> None:
    def learned(**changes: str) -> float | None:
        made = gateway()
        made.finished.account(logged(SERVED | STREAM | changes))
        token_s = made.finished.measured["small"].token_s
        return token_s.mean if token_s.count else None

    assert learned(generation_us="180000") == 0.02
    json_s = {"kind": "json", "server_ttft_us": "2000000", "ttft_us": "2000000"}
    assert learned(**json_s, completion_tokens="100") == 0.02
    assert learned(**json_s, completion_tokens="5") is None, "it was mostly its prompt's"
    two = "small 300 50 other interactive - 2 0 0 - acme"
    assert learned(generation_us="180000", bill=two) is None, "two at once"
    assert learned(**json_s, completion_tokens="100", status="504") is None


@pytest.mark.parametrize("status", [0, 200, 504])
async def test_of_a_json_answer_that_was_left_or_cut_the_prompt_is_estimated(status: int) -> None:
    assert estimated(JSON, status) == {"prompt_estimated": 100}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"body_bytes": "0"}, 200),  # a stream without its first token
        ({}, 504),
        (JSON, 429),
        (JSON, 503),
        (JSON | {"upstream_host": "-"}, 0),  # the client left before a server had it
        ({"prompt_tokens": "9", "completion_tokens": "9"}, 200),  # counted
    ],
)
async def test_what_no_server_worked_on_is_not_estimated(
    changes: dict[str, str], status: int
) -> None:
    assert estimated(changes, status) == {}


async def test_the_estimate_of_a_prompt_costs_as_the_pools_prompts_do() -> None:
    price = {"input": 1.0, "cached_input": 0.1, "output": 0.0}
    pool = PoolConfig.model_validate({"model": "small-7b", "slots": 4, "price": price})
    made = Gateway(Config.model_validate({"pools": {"small": pool}}))
    for changes in ({}, CUT):
        made.finished.account(logged(SERVED | STREAM | changes))
    (cost,) = made.ledger.report().costs
    assert (cost.input_estimated, cost.output_estimated) == (100, 10)
    assert cost.usd == pytest.approx(2 * (75 * 1.0 + 25 * 0.1) / 1e6)


async def test_that_no_server_could_be_tried_is_the_fault_of_none() -> None:
    url = "http://127.0.0.1:1"
    pool = PoolConfig.model_validate({"model": "small-7b", "slots": 4, "endpoints": [url]})
    made, suspected = Gateway(Config.model_validate({"pools": {"small": pool}})), list[str]()
    finished = Finished(
        lambda: made.policy,
        made.metrics,
        made.ledger,
        lambda: made.limits,
        lambda url, _: suspected.append(url),
    )
    none = {"status": "503", "details": "no_healthy_upstream", "flags": "UH"}
    for _ in range(5):
        finished.account(logged(SERVED | STREAM | CUT | none | {"upstream_host": "-"}))
    assert suspected == []
    for _ in range(5):
        finished.account(logged(SERVED | STREAM | CUT | none))
    assert set(suspected) == {url}
