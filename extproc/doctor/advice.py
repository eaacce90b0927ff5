"""A cause in words: the numbers that show it, and what mends it. Pure.

Must never decide which cause it is: that is for `causes.py`. Only `slow_steps` tells two apart,
batch and memory, since they share their evidence.
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

FASTEST = 0.01
"""The quantile of all gaps since the start that stands for what the server can do with a small
batch. No metric tells that; it was at least once so fast."""


@dataclass(frozen=True, slots=True)
class Cause:
    name: Name
    evidence: str
    fix: str


def queue_here(window: Window, here_s: float, no_room: str | None) -> Cause:
    now = window.now
    shed = "Shed earlier"
    if now.high_water:
        shed += f" (admission.high_water: auto, or below {now.high_water})"
    if no_room:
        more = f"add replicas; more slots in these are no help, since {no_room}"
    else:
        more = f"add slots (pools.{window.pool}.slots, --max-num-seqs), since TPOT holds its SLO"
    return Cause(
        "long queue",
        f"The wait for a slot is {time(window.gateway.queue_wait.mean or 0.0)} on average, about "
        f"{time(here_s)} at {percentile(window.slo.percentile)}. Now {now.queue_depth} wait for "
        f"{_slots(now)}; shedding begins at {now.high_water}.",
        f"{shed}, or {more}. `forebay plan` says how many.",
    )


def queue_there(window: Window, waiting_s: float) -> Cause:
    return Cause(
        "long queue",
        f"Requests wait inside the servers, about {time(waiting_s)} at "
        f"{percentile(window.slo.percentile)}. The gateway admits more than they run at once "
        f"({_slots(window.now)}), or others use them too.",
        f"Make pools.{window.pool}.slots no larger than each server's --max-num-seqs: then they "
        "wait at the gateway, which sheds. Look again after that.",
    )


def prompts_before_the_token(window: Window, server: ServerCounts) -> Cause:
    level = window.slo.percentile
    return Cause(
        "long prompts",
        f"In the servers prefill takes {time(server.prefill.mean or 0.0)} on average, after a wait "
        f"of {time(server.queue.mean or 0.0)}; both together about "
        f"{time(server.ttft.quantile(level))} at {percentile(level)}: {_prompts(window, server)}.",
        _shorter_prompts(server),
    )


def prompts_between_tokens(window: Window, server: ServerCounts) -> Cause:
    typical_s, mean_s = server.gaps.quantile(0.5), server.gaps.mean or 0.0
    return Cause(
        "long prompts",
        f"Prompts are computed between the tokens of other answers: {_prompts(window, server)}; "
        f"{tokens(server.prompt_tokens_in_a_step)} in an average step. The typical gap between "
        f"two tokens is about {time(typical_s)}, the mean {time(mean_s)}.",
        _shorter_prompts(server) + " A lower --max-num-batched-tokens cuts prompts into smaller "
        "pieces: gaps get shorter, first tokens later.",
    )


def slow_steps(window: Window, server: ServerCounts) -> Cause:
    """Batch or memory. The floor is not in the metrics; what is: how large the batch is, and how
    fast this server ever was (FASTEST)."""
    gap_s, slo_s = server.gaps.quantile(0.5), window.slo.tpot_s
    low_s, high_s = window.gaps_ever.bucket(FASTEST)
    batch = server.answers_in_a_step
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
            f"With fewer they held it: the fastest {share(FASTEST)} of all gaps since their start "
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


def kv_full(window: Window, server: ServerCounts) -> Cause:
    used = (
        ""
        if window.kv_usage is None
        else f" When read, {share(window.kv_usage)} of them were in use."
    )
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


def before_the_server(window: Window, here_s: float, there_s: float) -> Cause:
    counts = window.gateway
    tries = counts.attempts / counts.answers if counts.answers else 1.0
    return Cause(
        "elsewhere",
        f"The wait for a slot ({time(here_s)}) and the server ({time(there_s)}) explain less than "
        f"half of it. Attempts per answer: {tries:.2f}.",
        "Look for a tier that fails slowly before this one answers (forebay_attempts_total, "
        "Envoy's per_try_timeout), at forebay_event_loop_lag_seconds, and at the network.",
    )


def after_the_server(window: Window, server: ServerCounts) -> Cause:
    level = window.slo.percentile
    return Cause(
        "elsewhere",
        f"By the servers' own count TPOT holds it: {percentile(level)} is "
        f"{time(server.tpot.quantile(level))}. The tokens are late behind them.",
        "Look for clients that read slowly, at Envoy's CPU, and at the network.",
    )


def stalls(server: ServerCounts) -> Cause:
    typical_s, mean_s = server.gaps.quantile(0.5), server.gaps.mean or 0.0
    return Cause(
        "in the servers",
        f"The typical gap between two tokens is about {time(typical_s)}, the mean "
        f"{time(mean_s)}: a few are very long, and neither preemptions nor prompts "
        "explain them.",
        "Look at what else runs on their machine, and at their log.",
    )


def unread_first_tokens(window: Window) -> Cause:
    here_s = window.gateway.queue_wait.mean or 0.0
    shown = f"The wait for a slot, {time(here_s)} on average, is the smaller part. "
    return _unread(window, shown, "first tokens")


def unread_tokens(window: Window) -> Cause:
    return _unread(window, "", "tokens")


def _unread(window: Window, shown: str, what: str) -> Cause:
    fix = f"Name servers that can be read: --server {window.pool}=http://host:port."
    if window.servers:
        why = f"Their metrics tell of no {what} in this time; it stays open why."
        fix = f"Watch for longer. If others serve this pool: --server {window.pool}=URL."
    elif window.now.server == "other":
        why = "They are no vLLM, whose metrics would tell why."
        fix = "Look at the servers' own metrics for their queue, prefill and batch."
    else:
        why = "Their metrics could not be read, so it stays open why."
        if window.now.replicas_down:
            fix = "Bring back the replicas that are down, then look again."
    return Cause("in the servers", shown + why, fix)


def _slots(pool: Pool) -> str:
    return f"{pool.slots} slots ({pool.replicas_up} replica{'s' * (pool.replicas_up != 1)})"


def _prompts(window: Window, server: ServerCounts) -> str:
    level = window.slo.percentile
    _, most = server.prompt_tokens.bucket(level)
    return (
        f"prompts have {tokens(server.prompt_tokens.mean or 0.0)} on average, at most "
        f"{tokens(most)} at {percentile(level)}; the prefix cache had "
        f"{share(server.prefix_hit_rate)} of them"
    )


def _shorter_prompts(server: ServerCounts) -> str:
    if server.prefix_hit_rate < 0.5:
        return (
            "Prefix caching: switch it on (vLLM's default), put what stays the same first (system "
            "prompt, tools), what changes last. Else a shorter context."
        )
    return "The prefix cache does its part already: shorten the context, or add replicas."
