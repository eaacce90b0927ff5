"""The calibration from beginning to end: what is measured, in which order, and when it is refused.

Must never print: whoever calls says how progress is shown.
"""

import statistics
from collections.abc import Callable

from serving.calibrate.fit import Fit, Point, fit
from serving.calibrate.load import CalibrationError, Server, at_once, step_s

STREAMS = (1, 2, 4, 8)
PROMPT_WORDS = (64, 256, 512, 1024)
_ROUNDS = 5
_DECODE_WORDS = 32
_FASTEST_S = 1e-3  # at 8 streams this client takes about 0.1 ms for a token
_SLOWEST_S = 1.0


async def calibrate(
    server: Server, *, tokens: int = 48, say: Callable[[str], None] = lambda line: None
) -> Fit:
    """Measure and fit. Each point is the median of five rounds, after an answer to warm up.

    tokens  length of each answer; more is slower and steadier
    say     gets one line for each point

    Raises CalibrationError.
    """
    warm = await server.ask(words=_DECODE_WORDS, tokens=8)
    _refuse_if_unfit(warm.tpot_s)
    points: list[Point] = []
    for streams in STREAMS:
        rounds = [
            step_s(await at_once(server, streams, words=_DECODE_WORDS, tokens=tokens))
            for _ in range(_ROUNDS)
        ]
        points.append(Point(streams, 0, statistics.median(rounds)))
        say(f"{points[-1].name}: {points[-1].measured_s * 1e3:.2f} ms per token")
    for words in PROMPT_WORDS:
        # A word may be two tokens; where the context is short, so are the prompts.
        if server.max_model_len and 2 * words > server.max_model_len:
            break
        answers = [await server.ask(words=words, tokens=1) for _ in range(_ROUNDS)]
        prompt_tokens = round(statistics.median(answer.prompt_tokens for answer in answers))
        measured_s = statistics.median(answer.ttft_s for answer in answers)
        points.append(Point(0, prompt_tokens, measured_s))
        say(f"{points[-1].name}: {measured_s * 1e3:.1f} ms to the first token")
    return fit(points)


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
