"""Why a number is out of its SLO. Pure.

One function for TTFT and one for TPOT, written in the order in which causes are told apart. Must
never name a cause without a number that shows it; what the metrics cannot tell apart it says.
"""

from extproc.doctor import advice
from extproc.doctor.advice import Cause
from extproc.doctor.window import Window

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
            return advice.queue_here(window, here_s, _no_room(window, tpot_held))
        return advice.unread_first_tokens(window)
    there_s = server.ttft.quantile(level)
    if here_most_s + server.ttft.bucket(level)[1] < half_s:
        return advice.before_the_server(window, here_s, there_s)
    queue_s, prefill_s = server.queue.mean or 0.0, server.prefill.mean or 0.0
    waiting_s = there_s * queue_s / (queue_s + prefill_s) if queue_s + prefill_s else 0.0
    prefilling_s = there_s - waiting_s
    if here_s >= max(waiting_s, prefilling_s):
        return advice.queue_here(window, here_s, _no_room(window, tpot_held))
    if waiting_s >= prefilling_s:
        if window.preempted or (window.kv_usage or 0.0) >= FULL:
            return advice.kv_full(window, server)
        if server.prompt_tokens_in_a_step > MANY_STEP_TOKENS:  # they wait for each other's
            return advice.prompts_before_the_token(window, server)
        return advice.queue_there(window, waiting_s)
    # By the lower end of the bucket: prompts are to blame for what they took for sure.
    surely_s = server.ttft.bucket(level)[0] * prefilling_s / there_s
    gap_s = server.gaps.quantile(0.5)
    if server.gaps.count and surely_s <= STEPS_OF_A_SHORT_PROMPT * gap_s:
        return advice.slow_steps(window, server)
    return advice.prompts_before_the_token(window, server)


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
        return [advice.unread_tokens(window)]
    if server.tpot.count and server.tpot.over(slo_s).most <= server.tpot.count * (1 - level):
        return [advice.after_the_server(window, server)]
    causes = [advice.kv_full(window, server)] if window.preempted else []
    all_slow_s = server.gaps.quantile(0.5) - slo_s
    few_long_s = (server.gaps.mean or 0.0) - server.gaps.bucket(0.5)[1]  # at least
    if all_slow_s > max(few_long_s, 0.0):
        if server.prompt_tokens_in_a_step > MANY_STEP_TOKENS:
            causes.append(advice.prompts_between_tokens(window, server))
        else:
            causes.append(advice.slow_steps(window, server))
    elif not causes:
        if server.steps.over(MANY_STEP_TOKENS).least:
            causes.append(advice.prompts_between_tokens(window, server))
        elif all_slow_s > 0:
            causes.append(advice.slow_steps(window, server))
        else:
            causes.append(advice.stalls(server))
    return causes


def _no_room(window: Window, tpot_held: bool) -> str | None:
    """Why the servers could not carry more answers at once; None: nothing speaks against it."""
    if not tpot_held:
        return "TPOT does not surely hold its SLO"
    if window.preempted or (window.kv_usage or 0.0) >= FULL:
        return "the KV cache is full"
    if window.servers and window.servers.prompt_tokens_in_a_step > MANY_STEP_TOKENS:
        return "prompts fill their steps"
    return None
