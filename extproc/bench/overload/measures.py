"""What the answers of a turn say: goodput, times, what was refused, recovery. Pure.

Goodput is counted where answers end and the rest where requests come, both within a window that
begins after a warm-up: so neither the empty server of the beginning nor what is cut at the end
counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

from extproc.bench.bars import percentile
from extproc.bench.overload.load import Answer

Measured = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The part of a turn that is measured, in seconds since its beginning; and when the turn
    ended."""

    begins_s: float
    ends_s: float
    turn_ends_s: float


def measure(answers: Sequence[Answer], window: Window, slo_s: float) -> Measured:
    """Goodput: answers a second that ended in the window, whole, their first token within the SLO.

    The rest is of the requests that came in the window and at least one SLO before the turn ended:
    share refused, share failed, and the TTFT of those that were not refused. One that had no first
    token until its end counts with the time that it had waited, so then the percentiles are lower
    bounds (`ttft_at_least`).
    """
    seconds = window.ends_s - window.begins_s
    good = [
        answer for answer in answers if _is_whole_in(answer, window) and _in_time(answer, slo_s)
    ]
    until_s = min(window.ends_s, window.turn_ends_s - slo_s)
    came = [answer for answer in answers if window.begins_s <= answer.due_s < until_s]
    kept = [answer for answer in came if answer.outcome != "refused"]
    ttfts_s = [_ttft_or_wait_s(answer, window.turn_ends_s) for answer in kept]
    return {
        "offered_per_s": len(came) / (until_s - window.begins_s),
        "goodput_per_s": len(good) / seconds,
        "goodput_tokens_per_s": sum(answer.tokens for answer in good) / seconds,
        "requests": len(came),
        "shed_share": _share(len(came) - len(kept), len(came)),
        "failed_share": _share(sum(a.outcome == "failed" for a in came), len(came)),
        "accepted_within_slo_share": _share(sum(_in_time(a, slo_s) for a in kept), len(kept)),
        "ttft_p50_s": percentile(ttfts_s, 50) if kept else None,
        "ttft_p99_s": percentile(ttfts_s, 99) if kept else None,
        "ttft_at_least": any(answer.ttft_s is None for answer in kept),
    }


def recovery_s(answers: Iterable[Answer], overload_ended_s: float, slo_s: float) -> float | None:
    """How long after the overload the light load was served as it should be: when the first request
    came from which on none was refused, failed or had its first token after the SLO. 0 if that is
    true of all of them, None if it is not even of the last one, or if there is none."""
    light = sorted(
        (answer for answer in answers if answer.due_s >= overload_ended_s),
        key=lambda answer: answer.due_s,
    )
    bad = [
        place
        for place, answer in enumerate(light)
        if answer.outcome in ("refused", "failed") or not _in_time(answer, slo_s)
    ]
    if not light or (bad and bad[-1] == len(light) - 1):
        return None
    return light[bad[-1] + 1].due_s - overload_ended_s if bad else 0.0


def service(answers: Iterable[Answer], window: Window) -> Measured:
    """Mean and squared coefficient of variation of the time from a request to its answer's end, of
    the whole answers that ended in the window. The service time, where nobody waited."""
    took_s = [a.ended_s - a.due_s for a in answers if a.ended_s and _is_whole_in(a, window)]
    if not took_s:
        return {"mean_s": None, "scv": None, "answers": 0}
    mean_s = fmean(took_s)
    return {"mean_s": mean_s, "scv": pvariance(took_s) / mean_s**2, "answers": len(took_s)}


def best(points: Sequence[Measured]) -> Measured:
    """The point of a sweep that has the highest goodput."""
    return max(points, key=lambda point: point["goodput_per_s"])


def _is_whole_in(answer: Answer, window: Window) -> bool:
    ended_s = answer.ended_s
    return (
        answer.outcome == "whole"
        and ended_s is not None
        and window.begins_s <= ended_s < window.ends_s
    )


def _in_time(answer: Answer, slo_s: float) -> bool:
    return answer.ttft_s is not None and answer.ttft_s <= slo_s


def _ttft_or_wait_s(answer: Answer, turn_ends_s: float) -> float:
    if answer.ttft_s is not None:
        return answer.ttft_s
    return (answer.ended_s if answer.ended_s is not None else turn_ends_s) - answer.due_s


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
