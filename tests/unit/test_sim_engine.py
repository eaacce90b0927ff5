"""The scheduler of the simulated server, with a clock of our own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine import HELD, Engine, Event, Sequence, StepTime, block_hashes

BLOCK = 4  # small blocks, so that a few tokens fill some


def engine(
    max_num_seqs: int = 4, *, decode_s: float = 1.0, prefill_s: float = 0.0, **settings: Any
) -> Engine:
    given: dict[str, Any] = {"num_kv_blocks": 1000, "block_size": BLOCK, **settings}
    step_time = StepTime(base_s=decode_s, per_prefill_token_s=prefill_s)
    return Engine(step_time=step_time, max_num_seqs=max_num_seqs, **given)


def sequence(
    rid: str = "r",
    *,
    prompt: int | list[int] = 1,
    tokens: int = 3,
    hold_after: int | None = None,
    salt: str | None = None,
) -> Sequence:
    """A prompt of so many tokens that is like no other, or of these tokens."""
    length, hashes = (prompt, []) if isinstance(prompt, int) else (len(prompt), prompt)
    return Sequence(
        *(rid, 0, length, tokens, "length", hold_after, lambda event: None),
        block_hashes=block_hashes(hashes, BLOCK, salt),
    )


def told(events: list[Event]) -> list[tuple[str, int, bool, str | None]]:
    return [(e.sequence.request_id, e.tokens, e.fresh, e.ended) for e in events]


def step(e: Engine) -> list[Event]:
    """End the step that runs, on time."""
    due = e.next_step_at()
    assert due is not None
    return e.step(due)


def run_out(e: Engine, most: int = 10_000) -> list[tuple[float, Event]]:
    """Step until there is nothing to do; all events with their moments."""
    events: list[tuple[float, Event]] = []
    while (due := e.next_step_at()) is not None:
        events += ((due, event) for event in e.step(due))
        most -= 1
        assert most, "it does not end"
    return events


def ids(sequences: Any) -> list[str]:
    return [one.request_id for one in sequences]


# Time.


def test_an_idle_engine_has_no_step_to_do() -> None:
    assert engine().next_step_at() is None


def test_a_step_takes_what_the_model_says() -> None:
    model = StepTime(base_s=1.0, per_decode_seq_s=0.1, per_prefill_token_s=0.01)
    e = Engine(step_time=model, max_num_seqs=9, num_kv_blocks=99)
    e.add([sequence("a", prompt=20), sequence("b", prompt=30)], now=5.0)
    assert e.next_step_at() == pytest.approx(5 + 1 + 0.5)
    step(e)
    assert e.step_s == pytest.approx(1 + 0.2)
    e.add([sequence("c", prompt=7)], now=6.6)
    step(e)
    assert e.step_s == pytest.approx(1 + 0.2 + 0.07)
    assert e.next_step_at() == pytest.approx(5 + 1.5 + 1.2 + 1.27)


def test_the_knobs_say_a_step_of_one_and_what_more_adds() -> None:
    model = StepTime.of_knobs(decode_ms=20, decode_ms_per_seq=2, prefill_ms_per_1k=100)
    assert model.seconds(1, 0) == pytest.approx(0.020)
    assert model.seconds(8, 0) == pytest.approx(0.034)
    assert model.seconds(1, 500) == pytest.approx(0.070)
    with pytest.raises(ValueError, match="decode_ms_per_seq"):
        StepTime.of_knobs(decode_ms=1, decode_ms_per_seq=2, prefill_ms_per_1k=0)
    with pytest.raises(ValueError, match="base_s"):
        StepTime(base_s=float("nan"))


def test_the_first_token_ends_the_prefill_and_the_others_come_in_even_steps() -> None:
    e = engine(prefill_s=0.1)
    e.add([sequence(prompt=20, tokens=3)], now=5.0)
    assert [at for at, _ in run_out(e)] == pytest.approx([8.0, 9.0, 10.0])


def test_who_comes_during_a_step_is_looked_at_when_it_ends() -> None:
    e = engine()
    e.add([sequence("a")], now=0.0)
    e.add([sequence("b")], now=0.5)
    assert (ids(e.arrived), ids(e.waiting), ids(e.running)) == (["b"], [], ["a"])
    assert told(step(e)) == [("a", 1, True, None)]
    assert ids(e.running) == ["a", "b"]
    assert told(step(e)) == [("a", 2, True, None), ("b", 1, True, None)]


def test_a_step_dated_before_an_arrival_does_not_admit_it_before_it_came() -> None:
    e = engine(1)
    late = sequence("b")
    e.add([sequence("a", tokens=1)], now=0.0)
    e.add([late], now=1.3)
    e.step(1.2)
    assert late.admitted_at == 1.3
    assert e.next_step_at() == pytest.approx(2.3)


# Chunked prefill.


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes_and_slows_them_as_modelled() -> None:
    e = engine(prefill_s=0.1, max_num_batched_tokens=10)
    short, long = sequence("short", tokens=9), sequence("long", prompt=25)
    e.add([short], now=0.0)
    step(e)
    e.add([long], now=e.next_step_at() or 0)
    step(e)
    lengths, first_tokens = [], []
    while not long.tokens:
        lengths.append(e.step_s)
        first_tokens += [event.sequence.request_id for event in step(e)]
    assert lengths == pytest.approx([1.9, 1.9, 1.7]), "9 + 9 + 7 tokens beside one decode each"
    assert first_tokens == ["short", "short", "short", "long"]
    step(e)
    assert e.step_s == pytest.approx(1.0)


def test_a_decode_has_its_token_before_any_prefill() -> None:
    e = engine(max_num_batched_tokens=2)
    e.add([sequence("a", tokens=4), sequence("b", tokens=4)], now=0.0)
    step(e)
    e.add([sequence("c")], now=0.5)
    for _ in range(3):
        assert ids(event.sequence for event in step(e)) == ["a", "b"]
    assert ids(e.running) == ["c"], "until then the budget was used up"


# Ends.


def test_the_last_token_says_why_the_sequence_ends_and_frees_its_place() -> None:
    e = engine(1)
    e.add([sequence("a", tokens=1), sequence("b", tokens=1)], now=0.0)
    assert ids(e.waiting) == ["b"]
    assert told(step(e)) == [("a", 1, True, "length")]
    assert ids(e.running) == ["b"]
    assert told(step(e)) == [("b", 1, True, "length")]
    assert not e.running
    assert e.next_step_at() is None


def test_an_abort_ends_sequences_of_that_id_wherever_they_are() -> None:
    e = engine(2)
    e.add([sequence(rid) for rid in ("a", "b", "a")], now=0.0)
    step(e)
    e.add([sequence("a")], now=1.5)
    assert told(e.abort("a", 1.5)) == [("a", n, False, "abort") for n in (1, 0, 0)]
    assert (ids(e.arrived), ids(e.waiting), ids(e.running)) == ([], [], ["b"])
    assert told(step(e)) == [("b", 2, True, None)], "the step goes on without it"


def test_an_abort_of_an_unknown_or_ended_id_does_nothing() -> None:
    e = engine()
    e.add([sequence("a", tokens=1)], now=0.0)
    step(e)
    assert e.abort("a", 1.0) == []
    assert e.abort("never", 1.0) == []


def test_a_cancelled_sequence_leaves_its_place_to_the_next_without_an_event() -> None:
    e = engine(1)
    first, second = sequence("a"), sequence("b")
    e.add([first, second], now=0.0)
    assert e.cancel([first], now=0.5) == [first]
    assert step(e) == []
    assert e.running == [second]
    assert second.admitted_at == 1.0
    assert told(step(e)) == [("b", 1, True, None)]
    assert e.cancel([first], now=4.0) == [], "a second time changes nothing"


def test_a_held_sequence_falls_silent_keeps_its_place_and_is_deaf_to_aborts() -> None:
    e = engine(1)
    held, behind = sequence("a", hold_after=1), sequence("b")
    e.add([held, behind], now=0.0)
    assert told(step(e)) == [("a", 1, True, None)]
    assert e.abort("a", 1.5) == [], "deaf as soon as its last token is out"
    assert told(step(e)) == [("a", 1, False, HELD)]
    assert e.next_step_at() is None
    assert e.abort("a", 2.0) == []
    assert (e.running, ids(e.waiting)) == ([held], ["b"])
    assert e.cancel([held], 3.0) == [held]
    assert e.running == [behind], "an engine without a step to do begins one at once"
    assert e.next_step_at() == 4.0


# Blocks.


def test_the_last_come_loses_its_blocks_starts_again_and_its_tokens_are_not_told_twice() -> None:
    e = engine(num_kv_blocks=4)
    a, b = sequence("a", prompt=7, tokens=6), sequence("b", prompt=7, tokens=6)
    e.add([a, b], now=0.0)
    assert e.blocks.free == 0
    step(e)  # one token each
    step(e)  # their eighth token fills the second block
    assert e.preemptions == 1
    assert (ids(e.running), ids(e.waiting)) == (["a"], ["b"])
    assert (b.tokens, b.computed, b.blocks.count, a.blocks.count) == (2, 0, 0, 3)
    rest = [event for _, event in run_out(e)]
    assert [t for r, t, fresh, _ in told(rest) if r == "b" and fresh] == [3, 4, 5, 6]
    assert (a.ended, b.ended, e.blocks.free) == ("length", "length", 4)


def test_the_preempted_one_is_first_in_the_queue_again_and_lets_nobody_pass() -> None:
    e = engine(num_kv_blocks=4)
    e.add([sequence("a", prompt=7, tokens=6), sequence("b", prompt=7, tokens=6)], now=0.0)
    e.add([sequence("c", prompt=1, tokens=1)], now=0.5)
    step(e)
    step(e)
    assert (ids(e.running), ids(e.waiting)) == (["a"], ["b", "c"])


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    e = engine(num_kv_blocks=10, max_num_batched_tokens=16)
    e.add([sequence("a", prompt=20, tokens=1), sequence("b", prompt=24, tokens=1)], now=0.0)
    step(e)
    assert ids(e.running) == ["a"], "5 blocks are left, b needs 6"
    assert ids(event.sequence for _, event in run_out(e)) == ["a", "b"]


def test_a_held_sequence_is_never_preempted() -> None:
    e = engine(num_kv_blocks=4)
    held = sequence("held", prompt=7, hold_after=0)
    e.add([sequence("a", prompt=7, tokens=9), held], now=0.0)
    run_out(e)
    assert e.running == [held]
    assert ids(e.waiting) == ["a"], "which has no room beside it"
    e.cancel([held], 9.0)
    assert told([event for _, event in run_out(e)])[-1] == ("a", 9, True, "length")


# Prefix cache.


def test_full_blocks_of_an_equal_prompt_are_not_computed_again() -> None:
    e = engine(prefill_s=0.1)
    first, second = sequence(prompt=[7] * 11, tokens=1), sequence(prompt=[7] * 11, tokens=1)
    e.add([first], now=0.0)
    step(e)
    e.add([second], now=10.0)
    assert e.step_s == pytest.approx(1 + 3 * 0.1)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert (e.prefix_queries, e.prefix_hits) == (22, 8)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    e = engine()
    for _ in range(2):
        e.add([sequence(prompt=[7] * 12, tokens=1)], now=0.0)
        run_out(e)
    assert e.prefix_hits == 8, "not 12, and never a part of a block"


def test_a_twin_in_the_same_step_shares_already() -> None:
    e = engine(num_kv_blocks=6)
    twins = [sequence(prompt=[7] * 20, tokens=1) for _ in range(2)]
    e.add(twins, now=0.0)
    assert [twin.cached_tokens for twin in twins] == [0, 16]
    assert e.blocks.free == 0, "four shared, and a last one each"
    step(e)
    assert e.blocks.free == 6


def test_a_prefix_counts_only_from_the_beginning_and_within_its_salt() -> None:
    e = engine()
    for prompt, salt, cached in (
        ([1, 1, 1, 1, 2, 2, 2, 2, 3], None, 0),
        ([1, 1, 1, 1, 9, 9, 9, 9, 3], None, 4),
        ([8, 8, 8, 8, 2, 2, 2, 2, 3], None, 0),
        ([1, 1, 1, 1, 2, 2, 2, 2, 3], "acme", 0),
        ([1, 1, 1, 1, 2, 2, 2, 2, 4], "acme", 8),
    ):
        one = sequence(prompt=prompt, tokens=1, salt=salt)
        e.add([one], now=0.0)
        run_out(e)
        assert one.cached_tokens == cached


def test_the_oldest_content_is_forgotten_first_and_a_prompts_end_before_its_beginning() -> None:
    e = engine(num_kv_blocks=5)
    old, new = [1] * 9, [2] * 9
    for prompt in (old, new, [3] * 5):
        e.add([sequence(prompt=prompt, tokens=1)], now=0.0)
        run_out(e)
    assert e.blocks.hits(block_hashes(old, BLOCK), 9) == 1
    assert e.blocks.hits(block_hashes(new, BLOCK), 9) == 2


def test_text_is_hashed_by_four_characters_a_token() -> None:
    text = "0123456789abcdef" * 3
    assert len(block_hashes(text + "rest", 4)) == 3
    assert block_hashes(text, 4)[:2] == block_hashes(text[:32] + "other and longer", 4)[:2]
    assert block_hashes(text, 4) != block_hashes(text, 4, salt="s")


# Static batching.


def test_a_static_batch_ends_as_a_whole_and_then_the_next_one_forms() -> None:
    e = engine(2, static_batching=True)
    e.add([sequence("a", tokens=2), sequence("b", tokens=5), sequence("c", tokens=1)], now=0.0)
    ends = [(at, event.sequence.request_id) for at, event in run_out(e) if event.ended]
    assert ends == [(5.0, "a"), (5.0, "b"), (6.0, "c")]


def test_those_who_are_done_are_computed_along_in_a_static_batch() -> None:
    model = StepTime(base_s=1.0, per_decode_seq_s=0.5)
    e = Engine(step_time=model, max_num_seqs=2, num_kv_blocks=9, static_batching=True)
    e.add([sequence("a", tokens=2), sequence("b", tokens=5)], now=0.0)
    assert [at for at, event in run_out(e) if event.ended] == [9.0, 9.0], "1 + 4 steps of 2 s"


def test_when_the_longest_of_a_static_batch_is_aborted_the_others_end() -> None:
    e = engine(2, static_batching=True)
    e.add([sequence("a", tokens=2), sequence("b", tokens=50)], now=0.0)
    for _ in range(4):
        step(e)
    e.abort("b", 4.5)
    assert told([event for _, event in run_out(e)]) == [("a", 2, True, "length")]


# What holds whatever happens.

_prompts = st.one_of(
    st.integers(1, 40),
    st.tuples(st.integers(1, 2), st.integers(1, 40)).map(lambda pair: [pair[0]] * pair[1]),
)
_adds = st.tuples(st.just("add"), _prompts, st.integers(1, 9), st.sampled_from([None, None, 2]))
_actions = st.lists(
    st.one_of(
        _adds,
        _adds,
        st.tuples(st.just("step"), st.floats(0, 1)),
        st.tuples(st.just("step"), st.just(0.0)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
    ),
    max_size=60,
)


def _check(e: Engine, made: list[Sequence]) -> None:
    """The invariants of the engine's state and of the step that runs."""
    live = [one for one in made if not one.ended]
    places = [*e.arrived, *e.waiting, *e.running]
    assert len(places) == len(set(places)), "in one place only"
    assert set(places) == set(live)
    assert len(e.running) <= e.max_num_seqs
    assert all(one.blocks.count == 0 for one in made if one not in e.running)
    shared = {content for one in e.running for content in one.blocks.shared}
    private = sum(one.blocks.private for one in e.running)
    assert all(one.blocks.private >= 0 for one in e.running)
    assert e.blocks.free + len(shared) + private == e.blocks.total, "no block leaks"
    assert 0 <= e.blocks.free <= e.blocks.total
    for one in e.running:
        assert one.computed <= one.blocks.count * e.block_size
        assert one.computed <= one.known
    assert e.next_step_at() is not None or not (e.waiting or e.arrived) or all_held(e)


def all_held(e: Engine) -> bool:
    return all(one.held for one in e.running)


@given(
    max_num_seqs=st.integers(1, 4),
    num_kv_blocks=st.integers(13, 40),  # 13: one sequence at its longest
    budget=st.integers(4, 20),
    static=st.booleans(),
    actions=_actions,
)
def test_blocks_places_and_budget_hold_and_every_sequence_ends(
    max_num_seqs: int, num_kv_blocks: int, budget: int, static: bool, actions: list[Any]
) -> None:
    # The length of a step is the number of tokens in it.
    model = StepTime(base_s=0.0, per_decode_seq_s=1.0, per_prefill_token_s=1.0)
    e = Engine(
        step_time=model,
        max_num_seqs=max_num_seqs,
        num_kv_blocks=num_kv_blocks,
        block_size=BLOCK,
        max_num_batched_tokens=budget,
        static_batching=static,
    )
    now, made, gone = 0.0, [], set()

    def advance(late_s: float = 0.0) -> None:
        nonlocal now
        due = e.next_step_at()
        if due is None:
            return
        now = max(now, due + late_s)
        batch_before = set(e.running)
        counts = {one: one.tokens for one in made}
        for sequence_, tokens, fresh, ended in e.step(now):
            if fresh:
                assert tokens == counts[sequence_] + 1, "each token is told once, in order"
                counts[sequence_] = tokens
            assert ended in (None, HELD, "length")
        if static and batch_before & set(e.running):
            assert set(e.running) <= batch_before, "nobody joins a batch"
        if e.next_step_at() is not None:
            assert 1 <= e.step_s <= budget

    for action in actions:
        if action[0] == "add":
            _, prompt, tokens, hold_after = action
            one = sequence(str(len(made)), prompt=prompt, tokens=tokens, hold_after=hold_after)
            made.append(one)
            e.add([one], now)
        elif action[0] == "step":
            advance(action[1])
        elif action[1] < len(made):
            target = made[action[1]]
            gone.add(target)
            if action[0] == "abort":
                e.abort(target.request_id, now)
            else:
                e.cancel([target], now)
        _check(e, made)
    for _ in range(10_000):
        if e.next_step_at() is None:
            stuck = [one for one in e.running if one.held]
            if not stuck:
                break
            gone.update(stuck)
            e.cancel(stuck, now)
        advance()
        _check(e, made)
    assert (list(e.running), list(e.waiting), list(e.arrived)) == ([], [], [])
    assert e.blocks.free == e.blocks.total
    for one in made:
        if one not in gone:
            assert (one.tokens, one.ended) == (one.max_tokens, "length")


@given(
    arrivals=st.lists(st.floats(0, 20), min_size=1, max_size=30),
    max_num_seqs=st.integers(1, 4),
    num_kv_blocks=st.integers(6, 12),
    prompt=st.integers(1, 15),
    tokens=st.integers(1, 9),
)
def test_equal_prompts_get_their_first_tokens_in_the_order_in_which_they_came(
    arrivals: list[float], max_num_seqs: int, num_kv_blocks: int, prompt: int, tokens: int
) -> None:
    e = engine(max_num_seqs, num_kv_blocks=num_kv_blocks, max_num_batched_tokens=8)
    made: list[Sequence] = []
    for at in sorted(arrivals):
        while (due := e.next_step_at()) is not None and due <= at:
            e.step(due)
        made.append(sequence(prompt=prompt, tokens=tokens))
        e.add([made[-1]], at)
    run_out(e)
    firsts = [one.first_token_at for one in made]
    assert firsts == sorted(firsts, key=lambda at: at or 0)
