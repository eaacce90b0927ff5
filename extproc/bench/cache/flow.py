"""The order of `forebay bench cache`: read, embed, judge, time. All on this machine; no model
answers, and nothing is sent anywhere."""

import tempfile
from pathlib import Path
from typing import Any

from extproc.bench.bars import verdict
from extproc.bench.cache import quality, times
from extproc.bench.cache.data import read
from extproc.bench.cache.rig import DEFAULTS
from extproc.bench.cache.vectors import embed
from extproc.bench.lab import BenchError
from extproc.bench.report import Result, machine

_BUSY_S = 5.0
_FEWEST_DECISIONS = 500

Told = dict[str, Any]


async def run(folder: Path, most_lines: int | None) -> Result:
    """BenchError: there is nothing to judge, or the embedder does not work."""
    data = read(folder, most_lines)
    texts = list(data.texts())
    if not texts:
        raise BenchError(
            f"no texts in {folder}, nor in a checkout of Forebay; name a folder with --data"
        )
    embedded = await embed(texts, _BUSY_S if most_lines is None else 1.0)
    known = embedded.known
    pairs = [await quality.pairs(file, known) for file in data.pairs]
    stateful = [quality.stateful(file, known) for file in data.stateful]
    statements = await quality.statements(data.statements, known) if data.statements else None
    questions = [pair for file in data.pairs for pair in file.pairs]
    decision = await times.decision(questions, known) if questions else None
    embedding = times.embedding(embedded)
    skipped = dict(data.skipped)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as scratch:
        redis = await times.exact_in_redis(Path(scratch))
    if isinstance(redis, str):
        skipped["exact cache in Redis"] = redis
    result: Result = {
        "bench": "cache",
        "machine": machine(),
        "settings": {
            "lines_of_each_file": most_lines,
            "similarity": DEFAULTS.similarity,
            "plain_threshold": quality.PLAIN,
            "embedder": known.model,
        },
        "pairs": pairs,
        "stateful": stateful,
        "statements": statements,
        "decision": decision,
        "embedding": embedding,
        "exact": {
            "memory": await times.exact_in_memory(),
            "redis": None if isinstance(redis, str) else redis,
        },
        "skipped": skipped,
    }
    return result | {"bars": bars(result), "doubt": doubt(most_lines, decision)}


def bars(result: Result) -> list[Told]:
    """What is promised; those of files that are not there stay unmeasured."""
    told: list[Told] = []
    barred = [file for file in result["pairs"] if file["has_bar"]]
    for file in barred or [{"file": "semantic-pairs*.jsonl"}]:
        name, there = file["file"], bool(barred)
        told.append(verdict(f"{name}: false hits", file.get("false_hits"), "<=", 0, measured=there))
        told.append(
            verdict(
                f"{name}: share of paraphrases hit",
                file.get("true_hit_share"),
                ">=",
                0.75,
                measured=file.get("true_hit_share") is not None,
            )
        )
    unseen = [file for file in result["stateful"] if not file["trained_on"]]
    for file in unseen or [{"file": "stateful-*.jsonl, not trained on"}]:
        for measure, bar in (("recall", 0.95), ("precision", 0.9)):
            told.append(
                verdict(
                    f"{file['file']}: {measure}",
                    file.get(measure),
                    ">=",
                    bar,
                    measured=file.get(measure) is not None,
                )
            )
    return told + _other_bars(result)


def _other_bars(result: Result) -> list[Told]:
    statements, decision = result["statements"], result["decision"]
    told: list[Told] = []
    for way in ("decision", "gate_alone"):
        counts = statements[way] if statements else {"right": 0, "wrong": 0, "wrong_share": None}
        hits, wrong = counts["right"] + counts["wrong"], counts["wrong_share"]
        told.append(
            verdict(
                f"gptcache-mock.json, {way.replace('_', ' ')}: wrong, of {hits} hits",
                wrong,
                "<",
                0.01,
                measured=wrong is not None,
            )
        )
    p99_us = decision["p99_us"] if decision else None
    told.append(
        verdict(
            "decision beyond the embedding, p99, ms of CPU",
            None if p99_us is None else p99_us / 1000,
            "<",
            1.5,
            measured=p99_us is not None,
        )
    )
    lag_ms = result["embedding"]["loop_lag_p99_ms"]
    told.append(verdict("event-loop lag while embedding is busy, p99, ms", lag_ms, "<", 20))
    return told


def doubt(most_lines: int | None, decision: Told | None) -> str | None:
    """Why this run says little; None where it was whole."""
    if most_lines is not None:
        return f"Do not trust this run: only {most_lines:,} lines of each file were read."
    if decision is None or decision["decisions"] < _FEWEST_DECISIONS:
        return f"Do not trust the decision's time: it wants {_FEWEST_DECISIONS} decisions or more."
    return None
