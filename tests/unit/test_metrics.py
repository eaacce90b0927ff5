"""Our counters and histograms say on /metrics what the library's own would say."""

import time
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.backends import Servers
from extproc.cache import Caches, ExactCache, Secret, Times
from extproc.cache.memory import MemoryStore
from extproc.costs import Ledger
from extproc.limits import Books, Limits
from extproc.metrics import Metrics


def metrics(caches: Caches | None = None) -> Metrics:
    no_servers = Servers(0, 0, None, None, None)
    limits = Limits(Books(time.monotonic, time.time))
    return Metrics(
        dict,
        lambda _: True,
        lambda _: no_servers,
        lambda: caches,
        Ledger(0),
        lambda: (limits, {}),
    )


def samples(text: str, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(name)
    }


def shown(ours: Metrics, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(b"".join(ours.pieces()).decode(), name)


def test_a_counter_counts_by_its_labels() -> None:
    ours = metrics()
    ours.decisions["admitted", "a"] += 1
    ours.decisions["admitted", "a"] += 2
    ours.attempts["small"] += 1
    assert shown(ours, "forebay_decisions") == {
        ("forebay_decisions_total", (("decision", "admitted"), ("tenant", "a"))): 3
    }
    assert shown(ours, "forebay_attempts") == {("forebay_attempts_total", (("pool", "small"),)): 1}


def test_what_was_never_counted_is_not_shown() -> None:
    ours = metrics()
    assert ours.decisions["admitted", "a"] == 0
    assert shown(ours, "forebay_decisions") == {}


@given(st.lists(st.one_of(st.floats(0, 200), st.sampled_from([0.01, 0.5, 1.0, 120.0]))))
def test_a_histogram_is_the_librarys(values: list[float]) -> None:
    disable_created_metrics()
    ours, theirs = metrics(), CollectorRegistry()
    bounds = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
    library = Histogram(
        "forebay_queue_wait_seconds", "x", ["pool"], buckets=bounds, registry=theirs
    )
    for value in values:
        ours.queue_wait["small"].observe(value)
        library.labels("small").observe(value)
    expected = samples(generate_latest(theirs).decode(), "forebay_queue_wait")
    assert shown(ours, "forebay_queue_wait") == expected


def test_with_thousands_of_tenants_it_comes_in_small_pieces_that_are_one_text() -> None:
    """Nothing else runs while one is made, but between them."""
    ours = metrics()
    for n in range(3000):
        ours.decisions["admitted", f"tenant-{n}"] += n
        ours.ttft["small", f"tenant-{n}"].observe(1)
    pieces: list[bytes] = []
    for piece in ours.pieces():
        pieces.append(piece)
        ours.decisions["admitted", f"new-{len(pieces)}"] += 1
        ours.ttft["small", f"new-{len(pieces)}"].observe(1)
    assert max(piece.count(b"\n") for piece in pieces) < 130
    text = b"".join(pieces).decode()
    told = samples(text, "forebay_decisions_total")
    for n in range(3000):
        labels = (("decision", "admitted"), ("tenant", f"tenant-{n}"))
        assert told["forebay_decisions_total", labels] == n
    assert len(samples(text, "forebay_ttft_seconds_sum")) >= 3000
    said = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(said) == len(set(said)) > 20


def test_checked_hits_are_told_as_the_budget_and_the_cache_count_them() -> None:
    pytest.importorskip("simplemma")
    from extproc.cache.partitions import MemoryPartitions
    from extproc.cache.semantic.budget import FalseHitBudget
    from extproc.cache.semantic.cache import SemanticCache

    secret, clock = Secret(b"x" * 16), lambda: 0.0
    budget = FalseHitBudget(0.01)
    semantic = SemanticCache(
        secret,
        Mock(),
        MemoryPartitions(10, 10_000, clock),
        budget,
        similarity=0.6,
        ttl_s=60,
        clock=clock,
    )
    exact = ExactCache(MemoryStore(10_000, clock), secret, Times(60, 0))
    ours = metrics(Caches(exact, semantic))
    assert shown(ours, "forebay_semantic_tenants_off") == {("forebay_semantic_tenants_off", ()): 0}
    while budget.state("acme", 0.0) == "on":
        budget.told("acme", False, 0.0)
    budget.told("nightly", True, 0.0)
    semantic.unchecked = 3
    told = {name: value for (name, _), value in shown(ours, "forebay_semantic").items()}
    assert told == {
        "forebay_semantic_checked_total": budget.checked,
        "forebay_semantic_false_total": budget.checked - 1,
        "forebay_semantic_unchecked_total": 3,
        "forebay_semantic_tenants_off": 1,
    }
    assert shown(ours, "forebay_flights") == {("forebay_flights_under_way", ()): 0}


def test_without_a_semantic_cache_nothing_is_told_of_it() -> None:
    assert shown(metrics(), "forebay_semantic") == {}
