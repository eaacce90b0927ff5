"""`forebay doctor`: what it makes of given numbers, what it reads, how it refuses."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from extproc.cli import app
from extproc.doctor.diagnosis import Diagnosis, diagnose
from extproc.doctor.histogram import NONE, Histogram, Over, chance_of_so_many
from extproc.doctor.reading import GatewayCounts, Pool, ServerCounts, Slo
from extproc.doctor.troubles import troubles
from extproc.doctor.window import Window
from extproc.metrics import SECONDS, TPOT_SECONDS
from extproc.refused import STATUSES, WHY
from serving.engine import Engine, StepTime
from serving.metrics import (
    _PER_TOKEN_BOUNDS,
    _REQUEST_BOUNDS,
    _STEP_TOKENS_BOUNDS,
    _TTFT_BOUNDS,
    Metrics,
    Stats,
    _token_bounds,
)


def values(bounds: tuple[float, ...], by_value: Mapping[float, int]) -> Histogram:
    """Of these values, so often each."""
    upto = {
        bound: float(sum(times for value, times in by_value.items() if value <= bound))
        for bound in (*bounds, inf)
    }
    return Histogram.of_cumulative(
        upto, float(sum(value * times for value, times in by_value.items()))
    )


def gateway(ttft_s: float, tpot_s: float, wait_s: float = 0.0, **more: Any) -> GatewayCounts:
    """100 answers, all alike."""
    counts: dict[str, Any] = {"answers": 100, "attempts": 100}
    return GatewayCounts(
        ttft=values(SECONDS, {ttft_s: 100}),
        tpot=values(TPOT_SECONDS, {tpot_s: 100}),
        queue_wait=values(SECONDS, {wait_s: 100}),
        **(counts | more),
    )


def server(
    *,
    queue_s: float = 0.0,
    prefill_s: float = 0.02,
    gaps_s: Mapping[float, int] | None = None,
    tpot_s: float | None = None,
    batch: float = 8,
    prompt_tokens: int = 40,
    **more: Any,
) -> ServerCounts:
    """100 requests, all alike, of 50 tokens each; `gaps_s`: which gaps, of 4,900."""
    gaps = values(_PER_TOKEN_BOUNDS, gaps_s or {0.02: 4900})
    steps = round(5000 / batch)
    computed = {40: prompt_tokens * 100 // 40}  # spread over the steps
    step_tokens = (5000 + sum(value * times for value, times in computed.items())) / steps
    return ServerCounts(
        ttft=values(_TTFT_BOUNDS, {queue_s + prefill_s: 100}),
        gaps=gaps,
        tpot=values(_PER_TOKEN_BOUNDS, {tpot_s or gaps.mean or 0.0: 100}),
        queue=values(_REQUEST_BOUNDS, {queue_s: 100}),
        prefill=values(_REQUEST_BOUNDS, {prefill_s: 100}),
        prompt_tokens=values(_token_bounds(8192), {prompt_tokens: 100}),
        steps=values(_STEP_TOKENS_BOUNDS, {step_tokens: steps}),
        generated=5000,
        **more,
    )


def window(counts: GatewayCounts, servers: ServerCounts | None, **more: Any) -> Window:
    pool = Pool(
        server="vllm",
        endpoints=["http://s"],
        slots=16,
        replicas_up=1,
        in_flight=0,
        queue_depth=0,
        high_water=64,
        shedding=False,
    )
    gaps = servers.gaps + values(_PER_TOKEN_BOUNDS, {0.02: 100}) if servers else NONE
    made: dict[str, Any] = {
        "pool": "small",
        "now": pool,
        "slo": Slo(ttft_s=1.0, tpot_s=0.05, percentile=0.99),
        "gateway": counts,
        "servers": servers,
        "gaps_ever": gaps,
    }
    return Window(**(made | more))


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(one.measure.name, one.cause.name) for one in diagnosis.findings]


def fix(diagnosis: Diagnosis) -> str:
    (one,) = diagnosis.findings
    return one.cause.fix


# The causes.


def test_nothing_is_found_where_all_is_well() -> None:
    well = diagnose(window(gateway(0.3, 0.02, 0.2), server()))
    assert found(well) == []
    assert [one.verdict for one in well.measures] == ["held", "held"]


def test_a_wait_at_the_gateway_is_a_long_queue_and_more_slots_help_while_there_is_room() -> None:
    late = window(gateway(3, 0.02, 2.8), server())
    assert found(diagnose(late)) == [("TTFT", "long queue")]
    assert "below 64" in fix(diagnose(late))
    assert "add slots (pools.small.slots" in fix(diagnose(late))
    full = replace(late, kv_usage=0.99)
    assert "add replicas; more slots in these are no help, since the KV cache" in fix(
        diagnose(full)
    )
    slow = replace(late, gateway=gateway(3, 0.2, 2.8), servers=server(gaps_s={0.2: 4900}))
    ttft, tpot = diagnose(slow).findings
    assert (ttft.cause.name, tpot.cause.name) == ("long queue", "batch too large")
    assert "add replicas" in ttft.cause.fix


def test_a_wait_in_the_server_is_a_long_queue_with_another_fix() -> None:
    late = diagnose(window(gateway(3, 0.02), server(queue_s=2.8)))
    assert found(late) == [("TTFT", "long queue")]
    assert "no larger than each server's --max-num-seqs" in fix(late)


@pytest.mark.parametrize(
    "servers",
    [
        server(prefill_s=2.8, prompt_tokens=4000),
        server(prefill_s=1.0, queue_s=1.8, prompt_tokens=4000),  # waiting for each other's prefill
    ],
)
def test_a_long_prefill_is_long_prompts(servers: ServerCounts) -> None:
    late = diagnose(window(gateway(3, 0.02), servers))
    assert found(late) == [("TTFT", "long prompts")]
    assert "Prefix caching" in fix(late)
    cached = replace(servers, prefix_queries=100, prefix_hits=80)
    assert "shorten the context" in fix(diagnose(window(gateway(3, 0.02), cached)))


def test_a_short_prompt_in_slow_steps_is_not_long_prompts() -> None:
    late = diagnose(window(gateway(3, 2.0), server(prefill_s=2.8, gaps_s={2.0: 4900})))
    assert found(late) == [("TTFT", "batch too large"), ("TPOT", "batch too large")]


def test_preemptions_are_a_full_kv_cache_where_more_were_preempted_than_may_be_late() -> None:
    waiting = server(queue_s=2.8, preemptions=5)
    assert found(diagnose(window(gateway(3, 0.02), waiting))) == [("TTFT", "KV cache full")]
    one = replace(waiting, preemptions=1)
    assert found(diagnose(window(gateway(3, 0.02), one))) == [("TTFT", "long queue")]
    assert found(diagnose(window(gateway(3, 0.02), one, kv_usage=0.97))) == [
        ("TTFT", "KV cache full")
    ]
    thrown_out = server(gaps_s={0.02: 4800, 4.0: 100}, preemptions=100)
    assert found(diagnose(window(gateway(0.3, 0.1), thrown_out))) == [("TPOT", "KV cache full")]


def test_preemptions_of_answers_in_time_are_nobodys_business() -> None:
    assert found(diagnose(window(gateway(0.3, 0.02), server(preemptions=50)))) == []


def test_slow_steps_are_a_large_batch_if_they_ever_were_fast() -> None:
    late = window(gateway(0.3, 0.1), server(gaps_s={0.1: 4900}))
    assert found(diagnose(late)) == [("TPOT", "batch too large")]
    assert "Lower --max-num-seqs and pools.small.slots" in fix(diagnose(late))
    assert "fastest 1%" in diagnose(late).findings[0].cause.evidence
    unknown = replace(late, slo=Slo(1.0, 0.02, 0.99))
    assert found(diagnose(unknown)) == [("TPOT", "batch too large")]
    assert "Whether fewer hold it is not told" in diagnose(unknown).findings[0].cause.evidence
    never_fast = replace(late, gaps_ever=values(_PER_TOKEN_BOUNDS, {0.1: 100_000, 0.02: 999}))
    assert found(diagnose(never_fast)) == [("TPOT", "memory-bound")]
    assert "may not help" in diagnose(never_fast).findings[0].cause.evidence
    alone = replace(late, servers=server(gaps_s={0.1: 4900}, batch=1))
    assert found(diagnose(alone)) == [("TPOT", "memory-bound")]
    assert "cannot help" in fix(diagnose(alone))


@pytest.mark.parametrize(
    "gaps_s",
    [
        {0.02: 4500, 1.0: 400},
        {0.06: 4500, 1.0: 400},  # all are slow, but the long ones are more
        {0.1: 4900},
    ],
)
def test_prompts_computed_between_tokens_are_long_prompts(gaps_s: dict[float, int]) -> None:
    late = diagnose(window(gateway(0.3, 0.1), server(gaps_s=gaps_s, prompt_tokens=2000)))
    assert found(late) == [("TPOT", "long prompts")]
    assert "--max-num-batched-tokens" in fix(late)


def test_what_the_servers_do_not_explain_is_elsewhere() -> None:
    failing = diagnose(window(gateway(3, 0.02, 0.1, attempts=180), server()))
    assert found(failing) == [("TTFT", "elsewhere")]
    assert "Attempts per answer: 1.80" in failing.findings[0].cause.evidence
    coarse = diagnose(window(gateway(1.02, 0.02, 0.95), server()))
    assert found(coarse) == [("TTFT", "long queue")], "p99: 0.995 s, and 2.485 s in its bucket"
    slow_readers = diagnose(window(gateway(0.3, 0.2), server()))
    assert found(slow_readers) == [("TPOT", "elsewhere")]
    assert "read slowly" in fix(slow_readers)


def test_a_few_long_gaps_that_nothing_explains_stay_unexplained() -> None:
    stalls = diagnose(window(gateway(0.3, 0.1), server(gaps_s={0.02: 4800, 4.0: 100})))
    assert found(stalls) == [("TPOT", "in the servers")]
    assert "neither preemptions nor prompts" in stalls.findings[0].cause.evidence


def test_without_the_servers_numbers_a_wait_is_still_known_and_the_rest_stays_open() -> None:
    blind = window(gateway(3, 0.02, 2.8), None)
    assert found(diagnose(blind)) == [("TTFT", "long queue")]
    open_ = diagnose(window(gateway(3, 0.2, 0.1), None))
    assert found(open_) == [("TTFT", "in the servers"), ("TPOT", "in the servers")]
    assert all("--server small=" in one.cause.fix for one in open_.findings)
    foreign = replace(
        open_w := window(gateway(0.3, 0.2), None), now=replace(open_w.now, server="other")
    )
    assert "no vLLM" in diagnose(foreign).findings[0].cause.evidence


# What is plainly wrong.


def wrong(of: Window, *, config_refused: bool = False) -> list[tuple[str | None, str]]:
    return [(one.pool, one.name) for one in troubles([of], config_refused=config_refused)]


def test_nothing_is_wrong_with_a_pool_that_answers() -> None:
    assert wrong(window(GatewayCounts(), None)) == []
    assert wrong(window(late := gateway(3, 0.2, 2.8), None, ever=late)) == [], "late, not wrong"


def test_replicas_that_are_down_are_wrong_and_none_is_told_to_name_them() -> None:
    up = window(gateway(3, 0.02), None, unread=("http://a/metrics cannot be read (refused)",))
    some = replace(up, now=replace(up.now, endpoints=["http://a", "http://b"]))
    assert wrong(some) == [("small", "some replicas do not answer")]
    (trouble,) = troubles([some], config_refused=False)
    assert "1 of 2" in trouble.evidence
    assert "http://a/metrics cannot be read" in trouble.evidence
    assert "Bring back the replicas" in fix(diagnose(some))
    none = replace(some, now=replace(some.now, replicas_up=0, shedding=True))
    assert wrong(none) == [("small", "no replica answers")], "what it sheds comes of that"
    (trouble,) = troubles([none], config_refused=False)
    assert "2 of 2 (http://a, http://b)" in trouble.evidence
    assert "its log" in trouble.fix


def test_replicas_that_answer_here_but_not_the_gateway_have_another_fix() -> None:
    up = window(GatewayCounts(), None)
    (trouble,) = troubles([replace(up, now=replace(up.now, replicas_up=0))], config_refused=False)
    assert "can be read" in trouble.evidence
    assert "/health" in trouble.fix


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_refused_tries_are_wrong_with_what_their_status_means(status: str) -> None:
    counts = GatewayCounts(refused=Counter({status: 3}))
    (trouble,) = troubles([window(counts, None, ever=counts)], config_refused=False)
    assert (trouble.pool, trouble.name) == ("small", "its servers refuse tries")
    assert trouble.evidence.startswith(f"Status {status} of its servers, 3 times")
    assert WHY[status] in trouble.evidence
    assert "{" not in trouble.fix


def test_tries_that_were_refused_before_are_a_note_once_the_pool_has_served() -> None:
    before = GatewayCounts(refused=Counter({"404": 3}))
    assert wrong(window(GatewayCounts(), None, ever=before)) == [
        ("small", "its servers refuse tries")
    ]
    mended = window(GatewayCounts(), None, ever=replace(before, served=1))
    assert wrong(mended) == []
    (note,) = diagnose(mended).notes
    assert "refused 3 earlier tries and none in this time" in note


def test_a_pool_that_sheds_and_a_refused_config_are_wrong() -> None:
    up = window(GatewayCounts(), None)
    sheds = replace(up, now=replace(up.now, shedding=True, queue_depth=64))
    assert wrong(sheds, config_refused=True) == [
        (None, "the config file was refused"),
        ("small", "it sheds"),
    ]


# What is enough to say so.


def late_of(late: int, answers: int, *, slow_s: float = 3.0, slo_s: float = 1.0) -> str:
    counts = gateway(0.3, 0.02)
    ttft = values(SECONDS, {0.3: answers - late, slow_s: late})
    slo = Slo(ttft_s=slo_s, tpot_s=0.05, percentile=0.99)
    return diagnose(window(replace(counts, ttft=ttft), server(), slo=slo)).measures[0].verdict


def test_one_late_answer_of_few_may_be_chance() -> None:
    assert late_of(19, 19) == "too few"
    assert [late_of(late, 40) for late in (0, 1, 2, 3)] == ["held", "held", "held", "out"]
    assert [late_of(late, 10_000) for late in (100, 120, 125)] == ["held", "held", "out"]


def test_where_the_slo_lies_inside_a_bucket_what_it_holds_is_unsure() -> None:
    assert late_of(40, 40, slow_s=0.9, slo_s=0.8) == "unsure"
    assert late_of(40, 40, slow_s=1.1, slo_s=0.8) == "out"
    assert late_of(40, 40, slow_s=0.4, slo_s=0.8) == "held"


@given(
    st.lists(st.floats(0, 200), min_size=1, max_size=50),
    st.floats(0.001, 150),
    st.floats(0.5, 0.999),
)
def test_quantiles_and_shares_are_within_their_bucket(
    seconds: list[float], limit: float, level: float
) -> None:
    histogram = values(SECONDS, {value: seconds.count(value) for value in seconds})
    low, high = histogram.bucket(level)
    rank = min(len(seconds), max(1, -int(-level * len(seconds) // 1)))
    exact = sorted(seconds)[rank - 1]
    assert low <= exact <= high
    assert low <= histogram.quantile(level) <= high
    least, most = histogram.over(limit)
    assert least <= sum(value > limit for value in seconds) <= most


def test_histograms_add_on_the_bounds_that_both_have_and_begin_anew() -> None:
    fine, coarse = values((1, 2, 3), {0.5: 1, 1.5: 1, 2.5: 1}), values((2,), {1: 2, 9: 1})
    both = fine + coarse
    assert (both.bounds, both.counts, both.sum) == ((2, inf), (4, 2), 15.5)
    assert NONE + fine == fine
    assert fine.since(fine).count == 0
    assert (fine + fine).since(fine) == fine
    assert fine.since(fine + fine) == fine, "fewer than before: the process began anew"
    assert fine.over(2) == Over(1, 1)


def test_the_chance_of_late_answers_is_the_binomial_tail() -> None:
    assert chance_of_so_many(3, 40, 0.01) == pytest.approx(0.0075, abs=1e-4)
    assert chance_of_so_many(2, 2, 0.1) == pytest.approx(0.01)
    assert chance_of_so_many(1, 100, 0.01) == 1
    assert chance_of_so_many(2000, 100_000, 0.01) < 1e-9


# Reading.


def _text(name: str, histogram: Histogram) -> str:
    lines, total = [f"# TYPE {name} histogram"], 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        total += count
        lines.append(
            f'{name}_bucket{{pool="small",le="{"+Inf" if bound == inf else bound}"}} {total}'
        )
    lines += [
        f'{name}_sum{{pool="small"}} {histogram.sum}',
        f'{name}_count{{pool="small"}} {total}',
    ]
    return "\n".join(lines) + "\n"


def simulated() -> str:
    """What a simulated server says that has done nothing."""
    engine = Engine(step_time=StepTime(base_s=0), max_num_seqs=1, num_kv_blocks=1)
    return Metrics(engine, Stats(max_model_len=64), model_name="m").text().decode()


class Fake:
    """A gateway and one server of it, whose answers the test changes."""

    def __init__(self) -> None:
        self.url = ""
        self.was_read = asyncio.Event()
        self.ttft = NONE
        self.more = "forebay_config_last_reload_successful 1\n"
        self.server = simulated()
        self.status: dict[str, Any] = {
            "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "percentile": 0.99},
            "pools": {},
        }

    def add(self, pool: str, *endpoints: str) -> None:
        numbers = ("slots", "replicas_up", "high_water")
        self.status["pools"][pool] = {
            "server": "vllm",
            "endpoints": list(endpoints),
            **dict.fromkeys(numbers, 1),
            "in_flight": 0,
            "queue_depth": 0,
            "shedding": False,
        }

    async def doctor(self, *args: str) -> Result:
        asked = ["doctor", "--from", self.url, "--json", *args]
        return await asyncio.to_thread(CliRunner().invoke, app, asked)


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    made = Fake()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/status":
            return web.json_response(made.status)
        if request.path == "/metrics":
            made.was_read.set()
            return web.Response(text=_text("forebay_ttft_seconds", made.ttft) + made.more)
        return web.Response(text=made.server)

    async with _serving(answer) as made.url:
        made.add("small", f"{made.url}/server")
        yield made


@asynccontextmanager
async def _serving(answer: Any) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_only_what_came_between_the_readings_counts(fake: Fake) -> None:
    fake.ttft = values(SECONDS, {3.0: 500})
    watching = asyncio.create_task(fake.doctor("--watch", "500ms"))
    await fake.was_read.wait()
    fake.ttft += values(SECONDS, {0.3: 40})
    done = await watching
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["window_s"] == pytest.approx(0.5, abs=0.2)
    small = report["pools"]["small"]
    assert small["ttft"]["answers"] == 40
    assert small["ttft"]["verdict"] == "held"
    assert small["tpot"]["verdict"] == "too few"
    ever = await fake.doctor("--since-start")
    assert ever.exit_code == 1
    assert json.loads(ever.stdout)["pools"]["small"]["ttft"]["late"] == 500


async def test_a_processor_that_began_anew_is_said(fake: Fake) -> None:
    fake.ttft = values(SECONDS, {3.0: 500})
    watching = asyncio.create_task(fake.doctor("--watch", "500ms"))
    await fake.was_read.wait()
    fake.ttft = values(SECONDS, {0.3: 40})
    small = json.loads((await watching).stdout)["pools"]["small"]
    assert small["ttft"]["answers"] == 40
    assert ["began anew" in note for note in small["notes"]] == [True]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html>", "cannot be read"),
        ("up 1\n", "there is no vllm:num_requests_running"),
        (simulated().replace('le="+Inf"', 'le="9e9"'), "without a +Inf bucket"),
    ],
)
async def test_a_server_that_cannot_be_read_is_said_and_the_rest_is_judged(
    fake: Fake, text: str, why: str
) -> None:
    fake.server = text
    fake.ttft = values(SECONDS, {3.0: 40})
    done = await fake.doctor("--since-start")
    small = json.loads(done.stdout)["pools"]["small"]
    assert done.exit_code == 1
    assert [one["cause"] for one in small["findings"]] == ["in the servers"]
    (note,) = small["notes"]
    assert why in note
    assert "--server small=URL" in note


async def test_what_is_wrong_is_exit_status_1_and_said_first(fake: Fake) -> None:
    fake.add("large", "http://127.0.0.1:1")
    fake.status["pools"]["large"]["replicas_up"] = 0
    fake.ttft = values(SECONDS, {0.3: 40})
    refused = 'forebay_refused_tries_total{{pool="small",status="404"}} {}\n'
    served = 'forebay_answers_total{pool="small",status="200",tenant="a"} 5\n'
    fake.more = "forebay_config_last_reload_successful 0\n" + refused.format(7) + served
    watching = asyncio.create_task(fake.doctor("--watch", "500ms"))
    await fake.was_read.wait()
    fake.more = "forebay_config_last_reload_successful 0\n" + refused.format(9) + served
    done = await watching
    report = json.loads(done.stdout)
    assert (done.exit_code, report["well"]) == (1, False)
    assert [(one["pool"], one["trouble"]) for one in report["troubles"]] == [
        (None, "the config file was refused"),
        ("small", "its servers refuse tries"),
        ("large", "no replica answers"),
    ]
    assert report["troubles"][1]["evidence"].startswith(
        "Status 404 of its servers, 2 times in this time:"
    )
    assert "http://127.0.0.1:1/metrics cannot be read" in report["troubles"][2]["evidence"]
    assert "--server" not in done.stdout

    shown = await asyncio.to_thread(
        CliRunner().invoke, app, ["doctor", "--from", fake.url, "--since-start"]
    )
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert lines[0] == "the config file was refused"
    assert "small: its servers refuse tries" in lines
    assert "large: no replica answers" in lines
    assert lines[-1].startswith("no SLO is broken since the start: small p99 TTFT about")


async def test_only_the_chosen_pools_troubles_are_said(fake: Fake) -> None:
    fake.add("large", "http://127.0.0.1:1")
    fake.status["pools"]["large"]["replicas_up"] = 0
    assert (await fake.doctor("--since-start", "--pool", "small")).exit_code == 0
    assert (await fake.doctor("--since-start", "--pool", "large")).exit_code == 1


async def test_a_metric_that_a_server_does_not_have_is_said(fake: Fake) -> None:
    whole = json.loads((await fake.doctor("--since-start")).stdout)["pools"]["small"]
    assert whole["notes"] == [], "the simulated server has all of them"
    fake.server = simulated().replace("vllm:num_preemptions", "vllm:other")
    (note,) = json.loads((await fake.doctor("--since-start")).stdout)["pools"]["small"]["notes"]
    assert "has no vllm:num_preemptions_total; they count as 0" in note


async def test_servers_can_be_named_and_pools_chosen(fake: Fake) -> None:
    fake.add("large", "http://127.0.0.1:1")
    both = json.loads((await fake.doctor("--since-start")).stdout)["pools"]
    assert "http://127.0.0.1:1/metrics cannot be read" in both["large"]["notes"][0]
    named = await fake.doctor(
        "--since-start", "--pool", "large", "--server", f"large={fake.url}/server"
    )
    assert json.loads(named.stdout)["pools"].keys() == {"large"}
    assert json.loads(named.stdout)["pools"]["large"]["notes"] == []


async def test_many_that_run_and_few_that_end_are_said(fake: Fake) -> None:
    fake.status["pools"]["small"] |= {"in_flight": 16, "queue_depth": 4}
    done = await fake.doctor("--since-start")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["pools"]["small"]["notes"] == [
        "16 run and 4 wait, but few answers ended: watch for longer"
    ]


async def test_the_servers_of_a_pool_that_is_no_vllm_are_left_alone(fake: Fake) -> None:
    fake.status["pools"]["small"] |= {"server": "other", "endpoints": ["http://127.0.0.1:1"]}
    notes = json.loads((await fake.doctor("--since-start")).stdout)["pools"]["small"]["notes"]
    assert not any("127.0.0.1:1" in note for note in notes)


async def test_a_gateway_that_cannot_be_read_is_exit_status_2(fake: Fake) -> None:
    fake.status = {"pools": {}}
    old = await fake.doctor()
    assert old.exit_code == 2
    assert "not a status of this Forebay (slo: Field required)" in old.stderr
    for args, why in (
        (("--from", "http://127.0.0.1:1"), "no answer of a gateway"),
        (("--from", "127.0.0.1:9902"), "write http://host:port"),
        (("--server", "small"), "write it as POOL=http://host:port"),
        (("--watch", "5s", "--since-start"), "not both"),
    ):
        done = await fake.doctor(*args)
        assert done.exit_code == 2
        assert why in done.stderr


async def test_a_pool_that_is_not_there_is_said_before_the_wait(fake: Fake) -> None:
    done = await fake.doctor("--pool", "huge", "--watch", "1h")
    assert done.exit_code == 2
    assert "there is no pool huge; the gateway has small" in done.stderr
