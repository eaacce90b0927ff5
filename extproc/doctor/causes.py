"""Why a number is out of its SLO: what the metrics show, and what mends it. Pure.

One function for TTFT and one for TPOT, written in the order in which causes are told apart. Must
never name a cause without a number that shows it; what the metrics cannot tell apart it says.
"""

from dataclasses import dataclass
from typing import Literal

from extproc.doctor.reading import Pool, ServerCounts
from extproc.doctor.window import Window
from extproc.doctor.words import percentile, share, time, tokens

Name = Literal[
    "long queue",
    "long prompts",
    "batch too large",
    "memory-bound",
    "KV cache full",
    "elsewhere",
    "in the servers",
]

MANY_STEP_TOKENS = 256
"""Prompt tokens in an average step from which on prompts set its length. A GPU reads all weights
for a step, and can compute about so many tokens meanwhile (an H100 in 16 bits: 989 TFLOP/s by 3.35
TB/s is 295); below that a step takes about as long without them."""
STEPS_OF_A_SHORT_PROMPT = 2
"""A prompt that costs little is computed in one step beside the decodes, whose length it then has:
within twice the typical gap. What takes longer takes it for prompts."""
FULL = 0.95
"""Of the KV cache. vLLM admits nobody whose prompt does not fit in what is free: it queues before
the last block is taken."""
FASTEST = 0.01
"""The quantile of all gaps since the start that stands for what the server can do with a small
batch. No metric tells that; it was at least once so fast."""


@dataclass(frozen=True, slots=True)
class Cause:
    name: Name
    evidence: str
    fix: str


def of_ttft(window: Window, *, tpot_held: bool) -> Cause:
    """The largest part of the time to the first token, each taken at the SLO's percentile: waiting
    for a slot here, waiting in the server, prefill. The latter two are told apart by their means,
    since vLLM's buckets for them begin at 0.3 s. Where both sides together explain less than half
    for sure, by the ends of their buckets, it is none of them. `tpot_held`: more answers at once
    would not hurt TPOT."""
    level = window.slo.percentile
    half_s = window.gateway.ttft.bucket(level)[0] / 2
    here_s = window.gateway.queue_wait.quantile(level)
    here_most_s = window.gateway.queue_wait.bucket(level)[1]
    server = window.servers
    if server is None or not (server.ttft.count and server.prefill.count):
        if here_most_s >= half_s:
            return _queue_here(window, here_s, tpot_held)
        return _unread("first tokens", f"Of it {time(here_s)} are the wait for a slot.", window)
    there_s = server.ttft.quantile(level)
    if here_most_s + server.ttft.bucket(level)[1] < half_s:
        return _before_the_server(window, here_s, there_s)
    queue_s, prefill_s = server.queue.mean or 0.0, server.prefill.mean or 0.0
    waiting_s = there_s * queue_s / (queue_s + prefill_s) if queue_s + prefill_s else 0.0
    prefilling_s = there_s - waiting_s
    if here_s >= max(waiting_s, prefilling_s):
        return _queue_here(window, here_s, tpot_held)
    if waiting_s >= prefilling_s:
        if _preempted(window) or (window.kv_usage or 0.0) >= FULL:
            return _kv_full(window, server)
        if _prompt_tokens_in_a_step(server) > MANY_STEP_TOKENS:  # they wait for each other's
            return _prompts_before_the_token(window, server, there_s)
        return _queue_there(window, waiting_s)
    # By the lower end of the bucket: prompts are to blame for what they took for sure.
    surely_s = server.ttft.bucket(level)[0] * prefilling_s / there_s
    gap_s = server.gaps.quantile(0.5)
    if server.gaps.count and surely_s <= STEPS_OF_A_SHORT_PROMPT * gap_s:
        return _slow_steps(window, server)
    return _prompts_before_the_token(window, server, prefilling_s)


def of_tpot(window: Window) -> list[Cause]:
    """TPOT is the mean gap between an answer's tokens. It is over the SLO by what the typical gap
    (the median) is over it, since all steps are slow: by what they compute (prompts) or by their
    batch; and by what the mean is over the typical gap, since a few steps are long: prompts again,
    or answers that were preempted. The larger of these names the cause; preemptions do if they hit
    more answers than the SLO allows to be late. Only what the servers' own numbers show is charged
    to them."""
    level, slo_s = window.slo.percentile, window.slo.tpot_s
    server = window.servers
    if server is None or not server.gaps.count:
        return [_unread("tokens", "", window)]
    if server.tpot.count and server.tpot.over(slo_s).most <= server.tpot.count * (1 - level):
        return [_after_the_server(window, server)]
    causes = [_kv_full(window, server)] if _preempted(window) else []
    all_slow_s = server.gaps.quantile(0.5) - slo_s
    few_long_s = (server.gaps.mean or 0.0) - server.gaps.bucket(0.5)[1]  # at least
    if all_slow_s > max(few_long_s, 0.0):
        if _prompt_tokens_in_a_step(server) > MANY_STEP_TOKENS:
            causes.append(_prompts_between_tokens(window, server))
        else:
            causes.append(_slow_steps(window, server))
    elif not causes:
        if server.steps.over(MANY_STEP_TOKENS).least:
            causes.append(_prompts_between_tokens(window, server))
        else:
            causes.append(_slow_steps(window, server) if all_slow_s > 0 else _stalls(server))
    return causes


# What shows a cause, and what mends it.


def _queue_here(window: Window, here_s: float, tpot_held: bool) -> Cause:
    now = window.now
    shed = "Shed earlier"
    if now.high_water:
        shed += f" (admission.high_water: auto, or below {now.high_water})"
    if full := _no_room(window, tpot_held):
        more = f"add replicas; more slots in these are no help, since {full}"
    else:
        more = f"add slots (pools.{window.pool}.slots, --max-num-seqs), since TPOT holds its SLO"
    return Cause(
        "long queue",
        f"The wait for a slot is {time(window.gateway.queue_wait.mean or 0.0)} on average, about "
        f"{time(here_s)} at {percentile(window.slo.percentile)}. Now {now.queue_depth} wait for "
        f"{_slots(now)}; shedding begins at {now.high_water}.",
        f"{shed}, or {more}. `forebay plan` says how many.",
    )


def _queue_there(window: Window, waiting_s: float) -> Cause:
    return Cause(
        "long queue",
        f"Requests wait inside the servers, about {time(waiting_s)} at "
        f"{percentile(window.slo.percentile)}. The gateway admits more than they run at once "
        f"({_slots(window.now)}), or others use them too.",
        f"Make pools.{window.pool}.slots no larger than each server's --max-num-seqs: then they "
        "wait at the gateway, which sheds. Look again after that.",
    )


def _prompts_before_the_token(window: Window, server: ServerCounts, prefilling_s: float) -> Cause:
    return Cause(
        "long prompts",
        f"Prefill takes {time(server.prefill.mean or 0.0)} on average, about {time(prefilling_s)} "
        f"at {percentile(window.slo.percentile)}: {_prompts(window, server)}.",
        _shorter_prompts(server),
    )


def _prompts_between_tokens(window: Window, server: ServerCounts) -> Cause:
    typical_s, mean_s = server.gaps.quantile(0.5), server.gaps.mean or 0.0
    return Cause(
        "long prompts",
        f"Prompts are computed between the tokens of other answers: {_prompts(window, server)}; "
        f"{tokens(_prompt_tokens_in_a_step(server))} in an average step. The typical gap between "
        f"two tokens is about {time(typical_s)}, the mean {time(mean_s)}.",
        _shorter_prompts(server) + " A lower --max-num-batched-tokens cuts prompts into smaller "
        "pieces: gaps get shorter, first tokens later.",
    )


def _slow_steps(window: Window, server: ServerCounts) -> Cause:
    """Batch or memory. The floor is not in the metrics; what is: how large the batch is, and how
    fast this server ever was (FASTEST)."""
    gap_s, slo_s = server.gaps.quantile(0.5), window.slo.tpot_s
    low_s, high_s = window.gaps_ever.bucket(FASTEST)
    # Answers in a step: tokens told by steps that told any. (With speculative decoding a step tells
    # several of one answer, and this is too high.)
    batch = server.generated / server.steps.count if server.steps.count else None
    shown = f"The typical gap between two tokens is about {time(gap_s)}"
    if batch is not None:
        shown += f", with {batch:.1f} answers in an average step"
    if batch is not None and batch < 2:
        return Cause(
            "memory-bound",
            f"{shown}: nearly alone, a token already takes that long.",
            "Quantize the weights, take a smaller model, or spread it over more GPUs "
            "(--tensor-parallel-size). A smaller batch cannot help.",
        )
    if low_s >= slo_s:
        return Cause(
            "memory-bound",
            f"{shown}, and of all gaps since the servers' start not even the fastest "
            f"{share(FASTEST)} were under {time(low_s)}: a smaller batch may not help.",
            "Quantize the weights or take a smaller model. First try one request alone: it shows "
            "what a smaller batch gives.",
        )
    if high_s <= slo_s:
        faster = (
            f"With fewer they hold it: the fastest {share(FASTEST)} of all gaps since their start "
            f"took at most {time(high_s)}."
        )
    else:
        faster = (
            f"Whether fewer hold it is not told: the fastest {share(FASTEST)} of all gaps since "
            f"their start took {time(low_s)} to {time(high_s)}."
        )
    return Cause(
        "batch too large",
        f"{shown}. {faster}",
        f"Lower --max-num-seqs and pools.{window.pool}.slots, to half of these answers at first, "
        "and look again; or quantize the weights to keep the batch.",
    )


def _kv_full(window: Window, server: ServerCounts) -> Cause:
    used = "" if window.kv_usage is None else f" When read, {share(window.kv_usage)} were in use."
    if server.preemptions:
        shown = (
            f"{server.preemptions:.0f} preemptions while {server.prefill.count:.0f} requests "
            "ended: for want of KV blocks, answers are thrown out, wait and are computed again."
        )
    else:
        shown = "Requests wait inside the servers, where their prompts find too few KV blocks free."
    return Cause(
        "KV cache full",
        shown + used,
        "Give the KV cache more memory (--gpu-memory-utilization, --kv-cache-dtype fp8, quantized "
        "weights), or keep fewer tokens in it: a lower --max-num-seqs and "
        f"pools.{window.pool}.slots, or a smaller max_tokens.",
    )


def _before_the_server(window: Window, here_s: float, there_s: float) -> Cause:
    counts = window.gateway
    tries = counts.attempts / counts.answers if counts.answers else 1.0
    return Cause(
        "elsewhere",
        f"The wait for a slot ({time(here_s)}) and the server ({time(there_s)}) explain less than "
        f"half of it. Attempts per answer: {tries:.2f}.",
        "Look for a tier that fails slowly before this one answers (forebay_attempts_total, "
        "Envoy's per_try_timeout), at forebay_event_loop_lag_seconds, and at the network.",
    )


def _after_the_server(window: Window, server: ServerCounts) -> Cause:
    level = window.slo.percentile
    return Cause(
        "elsewhere",
        f"By the servers' own count TPOT holds it: {percentile(level)} is "
        f"{time(server.tpot.quantile(level))}. The tokens are late behind them.",
        "Look for clients that read slowly, at Envoy's CPU, and at the network.",
    )


def _stalls(server: ServerCounts) -> Cause:
    typical_s, mean_s = server.gaps.quantile(0.5), server.gaps.mean or 0.0
    return Cause(
        "in the servers",
        f"The typical gap between two tokens is about {time(typical_s)}, the mean "
        f"{time(mean_s)}: a few are very long, and neither preemptions nor prompts "
        "explain them.",
        "Look at what else runs on their machine, and at their log.",
    )


def _unread(what: str, shown: str, window: Window) -> Cause:
    fix = f"Name servers that can be read: --server {window.pool}=http://host:port."
    if window.servers:
        why = f"Their metrics tell of no {what} in this time; it stays open why."
        fix = f"Watch for longer. If others serve this pool: --server {window.pool}=URL."
    elif window.now.server == "other":
        why = "They are no vLLM, whose metrics would tell why."
        fix = "Look at the servers' own metrics for their queue, prefill and batch."
    else:
        why = "Their metrics could not be read, so it stays open why."
    return Cause("in the servers", f"{shown} {why}".strip(), fix)


# Numbers.


def _no_room(window: Window, tpot_held: bool) -> str | None:
    """Why the servers could not carry more answers at once; None: nothing speaks against it."""
    if not tpot_held:
        return "TPOT does not surely hold its SLO"
    if _preempted(window) or (window.kv_usage or 0.0) >= FULL:
        return "the KV cache is full"
    if window.servers and _prompt_tokens_in_a_step(window.servers) > MANY_STEP_TOKENS:
        return "prompts fill their steps"
    return None


def _preempted(window: Window) -> bool:
    """Whether more answers were preempted than the SLO allows to be late. One that was preempted
    twice counts twice: vLLM does not tell them apart."""
    server = window.servers
    if server is None or not server.preemptions:
        return False
    return server.preemptions > server.prefill.count * (1 - window.slo.percentile)


def _prompt_tokens_in_a_step(server: ServerCounts) -> float:
    if not server.steps.count:
        return 0.0
    return max(0.0, server.steps.sum - server.generated) / server.steps.count


def _slots(pool: Pool) -> str:
    return f"{pool.slots} slots ({pool.replicas_up} replica{'s' * (pool.replicas_up != 1)})"


def _prompts(window: Window, server: ServerCounts) -> str:
    level = window.slo.percentile
    _, most = server.prompt_tokens.bucket(level)
    return (
        f"prompts have {tokens(server.prompt_tokens.mean or 0.0)} on average, at most "
        f"{tokens(most)} at {percentile(level)}; the prefix cache had {share(_hit_rate(server))} "
        "of them"
    )


def _hit_rate(server: ServerCounts) -> float:
    return server.prefix_hits / server.prefix_queries if server.prefix_queries else 0.0


def _shorter_prompts(server: ServerCounts) -> str:
    if _hit_rate(server) < 0.5:
        return (
            "Prefix caching: switch it on (vLLM's default), put what stays the same first (system "
            "prompt, tools), what changes last. Else a shorter context."
        )
    return "The prefix cache does its part already: shorten the context, or add replicas."
