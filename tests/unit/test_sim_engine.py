"""The scheduler of the simulated server, with a clock of our own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine import HELD, Engine, Event, Sequence


def engine(max_num_seqs: int = 4, *, prefill_s: float = 0.0, decode_s: float = 1.0) -> Engine:
    return Engine(
        max_num_seqs=max_num_seqs, prefill_s_per_token=prefill_s, decode_s_per_token=decode_s
    )


def sequence(
    rid: str = "r", *, prompt: int = 1, tokens: int = 3, hold_after: int | None = None
) -> Sequence:
    return Sequence(rid, 0, prompt, tokens, "length", hold_after, deliver=lambda event: None)


def told(events: list[Event]) -> list[tuple[str, int, bool, str | None]]:
    return [(e.sequence.request_id, e.tokens, e.fresh, e.ended) for e in events]


def test_an_idle_engine_has_no_step_to_do() -> None:
    assert engine().next_step_at() is None


def test_the_first_token_comes_after_the_prefill_and_the_others_in_even_steps() -> None:
    e = engine(prefill_s=0.1, decode_s=1.0)
    e.add(sequence(prompt=20, tokens=3), now=5.0)
    times = []
    while (due := e.next_step_at()) is not None:
        assert len(e.step(due)) == 1
        times.append(due)
    assert times == pytest.approx([7.0, 8.0, 9.0])


def test_a_step_gives_one_token_to_each_sequence_that_is_ready() -> None:
    e = engine(prefill_s=0.1)
    e.add(sequence("short", prompt=1), now=0.0)
    e.add(sequence("long", prompt=15), now=0.0)
    assert told(e.step(0.1)) == [("short", 1, True, None)]
    assert e.next_step_at() == pytest.approx(1.1), "the long one waits for the common step"
    assert told(e.step(1.1)) == [("short", 2, True, None)]
    assert told(e.step(2.1)) == [("short", 3, True, "length"), ("long", 1, True, None)]


def test_the_last_token_says_why_the_sequence_ends_and_frees_its_place() -> None:
    e = engine(1)
    e.add(sequence("a", tokens=1), now=0.0)
    e.add(sequence("b", tokens=1), now=0.0)
    assert [s.request_id for s in e.waiting] == ["b"]
    assert told(e.step(0.0)) == [("a", 1, True, "length")]
    assert [s.request_id for s in e.running] == ["b"]
    assert told(e.step(1.0)) == [("b", 1, True, "length")]
    assert not e.running
    assert e.next_step_at() is None


def test_an_abort_ends_running_and_waiting_sequences_of_that_id_only() -> None:
    e = engine(2)
    for rid in ("a", "b", "a"):
        e.add(sequence(rid), now=0.0)
    e.step(0.0)
    assert told(e.abort("a", 0.5)) == [("a", 1, False, "abort"), ("a", 0, False, "abort")]
    assert [s.request_id for s in e.running] == ["b"]
    assert not e.waiting


def test_an_abort_of_an_unknown_or_ended_id_does_nothing() -> None:
    e = engine()
    e.add(sequence("a", tokens=1), now=0.0)
    e.step(0.0)
    assert e.abort("a", 1.0) == []
    assert e.abort("never", 1.0) == []


def test_a_cancelled_sequence_leaves_its_place_to_the_next_without_an_event() -> None:
    e = engine(1)
    first, second = sequence("a"), sequence("b")
    e.add(first, now=0.0)
    e.add(second, now=0.0)
    assert e.cancel([first], now=3.0) == [first]
    assert list(e.running) == [second]
    assert second.admitted_at == 3.0
    assert told(e.step(3.0)) == [("b", 1, True, None)]
    assert e.cancel([first], now=4.0) == [], "a second time changes nothing"


def test_a_held_sequence_falls_silent_keeps_its_place_and_is_deaf_to_aborts() -> None:
    e = engine(1)
    held = sequence("a", hold_after=1)
    e.add(held, now=0.0)
    assert told(e.step(0.0)) == [("a", 1, True, None)]
    assert e.abort("a", 0.5) == [], "deaf as soon as its last token is out"
    assert told(e.step(1.0)) == [("a", 1, False, HELD)]
    assert e.next_step_at() is None
    assert e.abort("a", 2.0) == []
    assert list(e.running) == [held]
    assert e.cancel([held], 3.0) == [held]
    assert not e.running


def test_a_step_dated_before_an_arrival_does_not_admit_it_before_it_came() -> None:
    e = engine(1, prefill_s=0.1)
    late = sequence("b", prompt=10)
    e.add(sequence("a", tokens=1), now=0.0)
    e.add(late, now=0.3)
    e.step(0.2)
    assert (late.admitted_at, late.ready_at) == (0.3, 1.3)


_actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 50), st.integers(1, 5)),
        st.tuples(st.just("step"), st.floats(0, 3)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(max_num_seqs=st.integers(1, 4), actions=_actions)
def test_places_are_never_exceeded_never_idle_and_given_in_order_of_arrival(
    max_num_seqs: int, actions: list[Any]
) -> None:
    e = engine(max_num_seqs, prefill_s=0.01, decode_s=0.5)
    now, made, gone = 0.0, [], set()
    for action in actions:
        if action[0] == "add":
            made.append(sequence(str(len(made)), prompt=action[1], tokens=action[2]))
            e.add(made[-1], now)
        elif action[0] == "step":
            now += action[1]
            before = [s for s in e.running if s.ready_at <= now]
            events = e.step(now)
            assert [event.sequence for event in events] == before
        elif action[1] < len(made):
            target = made[action[1]]
            gone.add(target)
            if action[0] == "abort":
                e.abort(target.request_id, now)
            else:
                e.cancel([target], now)
        assert len(e.running) <= max_num_seqs
        assert not e.waiting or len(e.running) == max_num_seqs
        assert all(s.admitted_at is None for s in e.waiting)
        assert set(e.running) | set(e.waiting) == {s for s in made if not s.ended}
    while (due := e.next_step_at()) is not None:
        now = max(now, due)
        e.step(now)
    stayed = [s for s in made if s not in gone]
    assert all(s.tokens == s.max_tokens and s.ended == "length" for s in stayed)
    admitted = [s.admitted_at for s in stayed]
    assert admitted == sorted(admitted), "first come, first served"
