"""How answers end when something goes wrong: deadline, faults, fallback, dead servers."""

import asyncio
import json
import time
from typing import Any

import h2.connection
import pytest
from h2.settings import SettingCodes

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway


def _short_limits(document: Any) -> None:
    """A stream that is silent for 2 s is cut."""
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    routes = manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    assert routes[0]["name"] == "admit_stream"
    routes[0]["route"]["idle_timeout"] = "2s"


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """A deadline of 1.5 s; half a second of grace after it."""
    return make_gateway(
        policy={"response": {"deadline": "1500ms", "grace": "500ms"}}, edit=_short_limits
    )


# --- deadline ---------------------------------------------------------------------------------


async def test_a_deadline_ends_a_stream_well_formed_and_marked(gateway: Gateway) -> None:
    began = time.monotonic()
    answer = await gateway.ask(
        chat(stream=True, max_tokens=5000, stream_options={"include_usage": True})
    )
    assert 1.4 < time.monotonic() - began < 2.0
    *chunks, last, usage = answer.events  # which checks the [DONE]
    assert last["choices"][0]["finish_reason"] == "abort"
    words = sum(1 for chunk in chunks if chunk["choices"][0]["delta"].get("content"))
    assert usage["usage"]["completion_tokens"] == words
    assert gateway.running("small") == 0
    assert gateway.received("small")[0]["ended"] == "abort"


async def test_a_stream_ended_by_the_deadline_hides_the_usage_nobody_asked_for(
    gateway: Gateway,
) -> None:
    line = 'forebay_tokens_total{kind="completion",pool="small"'
    gateway.wait_until_accounted()
    before = gateway.metric(line)
    answer = await gateway.ask(chat(stream=True, max_tokens=5000))
    *chunks, last = answer.events
    assert last["choices"][0]["finish_reason"] == "abort"
    words = sum(1 for chunk in chunks if chunk["choices"][0]["delta"].get("content"))
    gateway.wait_until_accounted()
    assert gateway.metric(line) == before + words


async def test_a_deadline_ends_a_json_answer_with_what_there_is(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(max_tokens=5000))
    assert answer.status == 200
    assert answer.json["choices"][0]["finish_reason"] == "abort"
    assert 50 < answer.json["usage"]["completion_tokens"] < 5000


async def test_a_server_that_does_not_react_is_cut_after_the_grace_time(gateway: Gateway) -> None:
    gateway.set_faults("small", {"ignore_aborts": True})
    began = time.monotonic()
    head, body = await _raw(gateway, chat(stream=True, max_tokens=5000))
    assert 1.9 < time.monotonic() - began < 3
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"[DONE]" not in body
    assert not body.endswith(b"0\r\n\r\n"), "a cut answer must not look complete"
    plain = await gateway.ask(chat(max_tokens=5000))
    assert (plain.status, plain.code) == (504, "upstream_timeout")
    assert len(gateway.received("small")) == 2, "started work is not sent again"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_never_opens_its_window_does_not_keep_the_slot(
    gateway: Gateway, stream: bool
) -> None:
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", "/v1/chat/completions"),
        ("authorization", f"Bearer {gateway.key}"),
    ]
    async with gateway.raw() as (_, writer):
        connection.send_headers(1, head)
        connection.send_data(1, json.dumps(chat(stream=stream, max_tokens=3)).encode(), True)
        writer.write(connection.data_to_send())
        await gateway.until_async(
            lambda: gateway.received("small") and gateway.running("small") == 0, "no answer"
        )
        await asyncio.sleep(0.3)
        assert gateway.status("small")["in_flight"] == 1, "nothing was kept back"
        await gateway.until_async(
            lambda: gateway.status("small")["in_flight"] == 0,
            "the slot is kept after deadline, grace and a second",
            limit_s=4,
        )


async def test_time_in_the_queue_counts_towards_the_deadline(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        policy={
            "response": {"deadline": "2s"},
            "pools": {"small": {"slots": 1}},
            "routing": {"fallback": {}},
        }
    )
    first = asyncio.create_task(gateway.ask(chat(max_tokens=200)))  # one second
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    began = time.monotonic()
    second = await gateway.ask(chat(max_tokens=5000))
    assert second.json["choices"][0]["finish_reason"] == "abort"
    assert time.monotonic() - began < 2.5
    await first


async def test_a_deadline_between_two_tiers_still_ends_well(gateway: Gateway) -> None:
    # The small server refuses after 1.6 s, when the deadline of 1.5 s has passed already.
    gateway.set_faults("small", {"latency_ms": 800, "status": 503})
    answer = await gateway.ask(chat(stream=True, max_tokens=5000))
    assert answer.headers["x-forebay-served-by"] == "large"
    assert answer.events[-1]["choices"][0]["finish_reason"] == "abort"


async def test_a_server_that_reads_slowly_is_asked_until_it_knows_the_request(
    gateway: Gateway,
) -> None:
    gateway.set_faults("small", {"latency_ms": 1600})
    for stream in (True, False):
        answer = await gateway.ask(chat(stream=stream, max_tokens=5000))
        assert answer.status == 200
        assert b'"finish_reason":"abort"' in answer.body


async def test_many_choices_and_prompts_end_at_the_deadline_too(gateway: Gateway) -> None:
    choices = await gateway.ask(chat(n=3, max_tokens=5000))
    prompts = await gateway.ask(
        {"model": "auto", "prompt": ["a", "b"], "max_tokens": 5000}, path="/v1/completions"
    )
    for answer, count in ((choices, 3), (prompts, 2)):
        reasons = [choice["finish_reason"] for choice in answer.json["choices"]]
        assert reasons == ["abort"] * count


# --- before the first byte: the next tier ----------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 503},
        {"status": 429},
        {"reset_before": True},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_byte_moves_to_the_next_tier(
    gateway: Gateway, fault: dict[str, Any], stream: bool
) -> None:
    gateway.set_faults("small", fault)
    answer = await gateway.ask(chat(max_tokens=2, stream=stream))
    assert answer.status == 200
    assert answer.headers["x-forebay-served-by"] == "large"
    assert answer.headers["x-envoy-attempt-count"] == "3"  # small, small, large
    assert len(gateway.received("small")) == 2
    (request,) = gateway.received("large")
    assert json.loads(request["body"])["model"] == "large-70b"
    attempts = 'forebay_attempts_total{pool="large"}'
    gateway.until(lambda: gateway.metric(attempts) >= 3, "the attempts are not counted")


async def test_after_the_last_tier_there_is_one_clean_error(gateway: Gateway) -> None:
    for pool in ("small", "large"):
        gateway.set_faults(pool, {"status": 503})
    failed = await gateway.ask(chat())
    assert failed.status == 503
    assert failed.code
    for pool in ("small", "large"):
        gateway.set_faults(pool, {"reset_before": True})
    for stream in (True, False):
        reset = await gateway.ask(chat(stream=stream))
        assert (reset.status, reset.code) == (503, "upstream_unavailable")
        assert reset.headers["retry-after"] == "1"


async def test_an_error_of_the_request_itself_is_not_tried_elsewhere(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(model="small-7b", max_tokens=100_000))
    assert answer.status == 400
    assert len(gateway.received("small")) == 1
    assert gateway.received("large") == []


# --- after the first byte: never again -------------------------------------------------------


async def test_a_reset_after_the_first_byte_is_not_tried_again(gateway: Gateway) -> None:
    gateway.set_faults("small", {"reset_after": 3})
    head, body = await _raw(gateway, chat(stream=True, max_tokens=50))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b" is" in body
    assert not body.endswith(b"0\r\n\r\n"), "a cut answer must not look complete"
    assert len(gateway.received("small")) == 1
    assert gateway.received("large") == []


async def test_an_error_event_inside_a_stream_passes_as_it_is(gateway: Gateway) -> None:
    gateway.set_faults("small", {"error_event_after": 3})
    answer = await gateway.ask(chat(stream=True, max_tokens=50))
    assert answer.events[-1]["error"]["code"] == 500
    assert len(gateway.received("small")) == 1


async def test_a_stream_that_falls_silent_is_cut(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(edit=_short_limits)  # the reference's deadline of 120 s
    gateway.set_faults("small", {"stall_after": 3})
    began = time.monotonic()
    _, body = await _raw(gateway, chat(stream=True, max_tokens=50))
    assert 1.9 < time.monotonic() - began < 4
    assert not body.endswith(b"0\r\n\r\n")
    assert len(gateway.received("small")) == 1
    gateway.wait_until_idle()


# --- dead servers -----------------------------------------------------------------------------


async def test_with_the_small_pool_dead_sixty_at_once_are_all_answered_by_the_large_one(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(policy={"admission": {"high_water": 64}})
    gateway.stack.kill("small")
    before_the_poll_knows = await gateway.ask_many(60, chat(max_tokens=5))
    _all_by_large(before_the_poll_knows)
    await gateway.until_async(lambda: not gateway.status("small")["up"], "still called up")
    later = await gateway.ask_many(60, chat(max_tokens=5))
    _all_by_large(later)
    assert {a.headers["x-forebay-route"] for a in later} == {"large; reason=default; small is down"}
    assert {a.headers["x-envoy-attempt-count"] for a in later} == {"1"}

    gateway.stack.kill("large")
    dead = await gateway.ask(chat())
    assert (dead.status, dead.code) == (503, "upstream_unavailable")

    gateway.stack.respawn("small")
    gateway.stack.respawn("large")
    await gateway.until_async(lambda: gateway.status("small")["up"], "still called down")
    assert (await gateway.ask(chat(max_tokens=1))).headers["x-forebay-served-by"] == "small"
    gateway.wait_until_idle()


def _all_by_large(answers: list[Answer]) -> None:
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["x-forebay-served-by"] for answer in answers} == {"large"}


async def _raw(gateway: Gateway, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """Head and body as bytes, until the connection ends."""
    data = json.dumps(body).encode()
    async with gateway.raw() as (reader, writer):
        writer.write(gateway.head("connection: close", f"content-length: {len(data)}") + data)
        got = b""
        try:
            while piece := await asyncio.wait_for(reader.read(65536), 10):
                got += piece
        except ConnectionResetError:
            pass
    head, _, rest = got.partition(b"\r\n\r\n")
    return head, rest


async def test_a_tenant_and_an_endpoint_have_deadlines_of_their_own(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={
            "response": {
                "deadline": "20s",
                "paths": {"/v1/completions": {"deadline": "400ms", "on_expiry": "cut"}},
            },
            "tenants": {"acme": {}, "nightly": {"deadline": "600ms"}},
        }
    )
    long = chat(max_tokens=400)
    whole = await gateway.ask(long)
    nightly = await gateway.ask(long, headers={"authorization": "Bearer sk-demo-nightly"})
    prompt = {"model": "auto", "prompt": "Tell me", "max_tokens": 400}
    completion = await gateway.ask(prompt, path="/v1/completions")
    assert whole.json["choices"][0]["finish_reason"] == "length"
    assert nightly.json["choices"][0]["finish_reason"] == "abort"
    assert (completion.status, completion.code) == (504, "upstream_timeout")
    gateway.wait_until_idle()


async def test_a_server_whose_answers_end_badly_is_left_alone_for_a_while(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={"routing": {"fallback": {"small": ["small", "large"]}}},
    )
    await gateway.ask(chat(stream=True, max_tokens=2))  # tells that its usage is counted
    gateway.wait_until_accounted()
    gateway.set_faults("small", {"error_event_after": 3})
    for _ in range(3):
        assert b'"error"' in (await gateway.ask(chat(stream=True, max_tokens=9))).body
    error = 'forebay_endings_total{ending="error",pool="small"}'
    await gateway.until_async(lambda: gateway.metric(error) == 3, "not seen")
    assert not gateway.status("small")["up"]
    other = await gateway.ask(chat(stream=True, max_tokens=2))
    assert other.headers["x-forebay-route"] == "large; reason=default; small is down"
    gateway.set_faults("small", {})
    await gateway.until_async(lambda: gateway.status("small")["up"], "never trusted again")
    assert (await gateway.ask(chat(max_tokens=1))).headers["x-forebay-served-by"] == "small"


async def test_the_tokens_of_a_stream_that_was_left_are_estimated_and_called_so(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway()
    for _ in range(2):
        await gateway.ask(chat(stream=True, max_tokens=50))
    async with gateway.raw() as (reader, writer):
        body = json.dumps(chat(stream=True, max_tokens=5000)).encode()
        writer.write(gateway.head("content-type: application/json", f"content-length: {len(body)}"))
        writer.write(body)
        await writer.drain()
        seen = b""
        while seen.count(b'"content"') < 100:
            seen += await reader.read(65536)
    estimated = 'forebay_tokens_total{kind="completion_estimated",pool="small"'
    await gateway.until_async(lambda: gateway.metric(estimated) > 0, "not estimated")
    assert 70 <= gateway.metric(estimated) <= 200
    # Of the same prompt, so it is exact.
    prompt = 'forebay_tokens_total{{kind="{}",pool="small"'.format
    assert gateway.metric(prompt("prompt_estimated")) == gateway.metric(prompt("prompt")) / 2
    assert gateway.metric('forebay_tokens_total{kind="completion",pool="small"') == 100
    assert gateway.metric('forebay_endings_total{ending="client_left",pool="small"}') == 1
    gateway.wait_until_idle()
