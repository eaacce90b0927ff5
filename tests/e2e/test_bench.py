"""The benchmarks run, with every contender, and their numbers are possible. Not that bars hold:
that takes a quiet machine and more requests."""

import json
import subprocess
import sys
from typing import Any

REQUESTS = 20
CHUNKS = 40


def bench(*arguments: str) -> Any:
    done = subprocess.run(
        (sys.executable, "-m", "extproc", "bench", *arguments, "--json", "--rounds", "1"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_overhead_measures_every_contender() -> None:
    told = bench("overhead", "--requests", str(REQUESTS))
    contenders = told["contenders"]
    assert list(contenders) == [
        "envoy",
        "minimal",
        "immediate",
        "refuse",
        "forebay",
        "forebay-fill",
        "forebay-hit",
        "forebay-shed",
    ]
    for name, numbers in contenders.items():
        assert numbers["answers"] >= 4 * REQUESTS  # warm-up, two rates, saturation
        for part in ("envoy",) if name == "envoy" else ("envoy", "processor"):
            assert 5 < numbers[f"{part}_cpu_us"] < 50_000, (name, part)
        assert numbers["all_cpu_us"] >= numbers["envoy_cpu_us"]
        assert numbers["requests_per_s"] > 1
        for when in ("at_50", "at_200", "at_saturation"):
            assert 0 < numbers[f"p50_ms_{when}"] <= numbers[f"p99_ms_{when}"]
    verdicts = {ratio["what"]: ratio["holds"] for ratio in told["ratios"]}
    assert verdicts.pop("all CPU, litellm / forebay") is None
    assert set(map(type, verdicts.values())) == {bool}
    assert told["processor_start_ms"] > 100
    assert set(told["large_prompt_cpu_ms"]) == {"minimal", "forebay"}


def test_tokens_measures_every_contender() -> None:
    told = bench("tokens", "--chunks", str(CHUNKS), "--streams", "8")
    measured = told["contenders"]
    assert set(measured) == {"envoy", "counted", "hidden", "guard", "echo"}
    for numbers in measured.values():
        assert numbers["chunks"] == CHUNKS * 8
        assert numbers["envoy_cpu_us"] > 0
        assert 0.8 <= numbers["reads_per_chunk"] < 1.5
    # What this benchmark is about: tokens visit Python only where the config says so.
    assert measured["echo"]["processor_cpu_us"] > 5 * abs(measured["hidden"]["processor_cpu_us"])
