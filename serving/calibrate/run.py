"""The calibration from beginning to end: what is measured, in which order, and when it is refused.

Must never print: whoever calls says how progress is shown.
"""

from collections.abc import Callable, Sequence
from statistics import median

from serving.calibrate.fit import Fit, Point, fit
from serving.calibrate.load import Answer, CalibrationError, Server, at_once, step_s

STREAMS = (1, 2, 4, 8)
PROMPT_WORDS = (64, 256, 512, 1024)
ROUNDS = 5
_LEAST_SIZES = 2  # of batches, and of prompts: a line needs two points
_DECODE_WORDS = 32
_FASTEST_S = 1e-3  # at 8 streams this client takes about 0.1 ms for a token
_SLOWEST_S = 1.0


async def calibrate(
    server: Server, *, tokens: int = 48, say: Callable[[str], None] = lambda line: None
) -> Fit:
    """Measure and fit. Each point is the median of five rounds; a round goes through all points, so
    that a moment in which the machine does something else spoils no point. A sample in which the
    streams did not decode together is left out, and so is a number of streams that never did: the
    server has fewer places. Prompts are taken to be computed in one step.

    tokens  length of each answer; more is slower and steadier
    say     gets a line about how long it takes, one for each round, one for what is left out

    Raises CalibrationError.
    """
    warm = await server.ask(words=_DECODE_WORDS, tokens=8)
    _refuse_if_unfit(warm.tpot_s)
    # A word may be two tokens; where the context is short, so are the prompts.
    longest = server.max_model_len or float("inf")
    prompts = [words for words in PROMPT_WORDS if 2 * words <= longest]
    if len(prompts) < _LEAST_SIZES:
        raise CalibrationError(
            f"a context of {longest} tokens is too short to measure prompts: start the server with "
            f"--max-model-len {2 * PROMPT_WORDS[-1]} or more"
        )
    decodes: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    prefills: dict[int, list[Answer]] = {words: [] for words in prompts}
    least_s = ROUNDS * (len(STREAMS) * tokens + len(prompts)) * warm.tpot_s
    say(f"{warm.tpot_s * 1e3:.1f} ms per token: {ROUNDS} rounds take {least_s:.0f} s or more")
    for number in range(ROUNDS):
        for streams, steps_s in decodes.items():
            answers = await at_once(server, streams, words=_DECODE_WORDS, tokens=tokens)
            together_s = step_s(answers)
            if together_s is not None:
                steps_s.append(together_s)
        for words, firsts in prefills.items():
            firsts.append(await server.ask(words=words, tokens=1))
        latest = [f"{n} decoding {_ms(steps_s)}" for n, steps_s in decodes.items()]
        say(f"after round {number + 1} of {ROUNDS}: {', '.join(latest)}")
    apart = [streams for streams, steps_s in decodes.items() if not steps_s]
    if len(STREAMS) - len(apart) < _LEAST_SIZES:
        raise CalibrationError(
            f"{_and(apart)} streams never decoded together: does the server take two or more at "
            "once (--max-num-seqs)? If it does, give a larger --tokens"
        )
    if apart:
        say(
            f"{_and(apart)} streams never decoded together and are left out: the server takes "
            "fewer at once (--max-num-seqs)"
        )
    return fit(
        [
            *(
                Point(streams, 0, median(steps_s))
                for streams, steps_s in decodes.items()
                if steps_s
            ),
            *(
                Point(
                    0,
                    round(median(first.prompt_tokens for first in firsts)),
                    median(first.ttft_s for first in firsts),
                )
                for firsts in prefills.values()
            ),
        ]
    )


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _ms(steps_s: Sequence[float]) -> str:
    return f"{median(steps_s) * 1e3:.1f} ms" if steps_s else "?"


def _refuse_if_unfit(tpot_s: float) -> None:
    if tpot_s < _FASTEST_S:
        raise CalibrationError(
            f"{tpot_s * 1e3:.2f} ms per token is too fast to be measured over HTTP; such a server "
            "needs no profile: forebay sim --decode-ms 0"
        )
    if tpot_s > _SLOWEST_S:
        raise CalibrationError(
            f"{tpot_s:.1f} s per token: a calibration would take hours. If the server is under "
            "load, calibrate while nobody else uses it"
        )
