"""The semantic cache as a request meets it: real gate, stores, budget; vectors of words."""

import asyncio
import time
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import orjson
import pytest

from extproc.cache import Caches, ExactCache, Query, Secret, Times, scope_of
from extproc.cache.caches import Found
from extproc.cache.memory import MemoryStore
from extproc.cache.partitions import MemoryPartitions, Vector
from extproc.cache.semantic.budget import FalseHitBudget
from extproc.cache.semantic.cache import SemanticCache
from extproc.embedders import EmbedderUnavailable
from extproc.embedders.protocol import unit_vector
from extproc.openai import CHAT, parse

ASKED = "How do I boil an egg?"
SAME = "How can I boil an egg?"
OTHER = "How do I boil two eggs?"


class Words:
    """A text's vector says which words are in it."""

    def __init__(self) -> None:
        self.model, self.dimensions = "words", 384
        self.fails = False
        self.calls = 0

    def start(self) -> None:
        pass

    async def embed(self, text: str) -> Vector:
        self.calls += 1
        await asyncio.sleep(0)
        if self.fails:
            raise EmbedderUnavailable("busy", "too many at once")
        vector = np.zeros(384, np.float32)
        for word in text.lower().strip("?.! ").split():
            vector[zlib.crc32(word.encode()) % 384] += 1
        return unit_vector(vector)

    async def close(self) -> None:
        pass


class Rig:
    def __init__(self, similarity: float = 0.6, share: float = 0.0, first: int = 0) -> None:
        self.now = 0.0
        self.words = Words()
        secret, store = Secret(b"x" * 16), MemoryStore(2**24, lambda: self.now)
        partitions = MemoryPartitions(1000, 2**24, lambda: self.now)
        store.dropped = partitions.drop
        # With `first` of 0 no hit is checked but by chance.
        self.budget = FalseHitBudget(0.01, share=share, first=first)
        self.semantic = SemanticCache(
            secret,
            self.words,
            partitions,
            self.budget,
            similarity=similarity,
            ttl_s=50.0,
            clock=lambda: self.now,
            draw=Random(1).random,
        )
        self.caches = Caches(ExactCache(store, secret, Times(100.0, 10.0)), self.semantic)

    async def ask(self, text: str, **more: Any) -> Found:
        """One that then leaves without an answer."""
        found = await self.begin(text, **more)
        if found.fill is not None:
            found.fill.give_up()
        return found

    async def begin(
        self,
        text: str,
        *,
        tenant: str = "acme",
        user: str = "ann",
        cache_control: str = "",
        pool: str = "small",
        **more: Any,
    ) -> Found:
        members: dict[str, Any] = {
            "model": "m",
            "temperature": 0,
            "messages": [{"role": "user", "content": text}],
            **more,
        }
        body = orjson.dumps(members)
        return await self.caches.look_up(
            Query(
                scope=scope_of("tenant", tenant, user),
                alike_scope=scope_of("user", tenant, user),
                wanted="deterministic",
                pool=pool,
                model="small-7b",
                request=parse(CHAT, body),
                body=body,
                cache_control=cache_control,
            )
        )

    async def store(self, text: str, answer: str = "Seven minutes.", **more: Any) -> None:
        found = await self.begin(text, **more)
        self.answered(found, answer)

    @staticmethod
    def answered(found: Found, answer: str) -> None:
        assert found.fill is not None
        found.fill.feed(
            orjson.dumps(
                {
                    "object": "chat.completion",
                    "model": "small-7b",
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": answer},
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 5, "completion_tokens": 3},
                }
            )
        )
        assert found.fill.end()


def outcome(found: Found) -> str:
    return found.looked.outcome if found.looked else found.result


async def test_the_same_question_in_other_words_gets_the_answer() -> None:
    rig = Rig()
    assert outcome(await rig.ask(SAME)) == "no_candidate"  # an empty cache
    await rig.store(ASKED)
    rig.now = 7.0
    found = await rig.ask(SAME)
    assert found.result == "semantic_hit"
    assert found.hit
    assert (found.hit.answer.text, found.hit.age_s) == ("Seven minutes.", 7.0)
    assert found.status.startswith('forebay; hit; ttl=93; detail="semantic; similarity=0.')
    assert (await rig.ask(ASKED)).result == "hit"  # exact, and no vector was needed
    assert outcome(await rig.ask(OTHER)) == "refused"


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("another user", {"user": "bob"}),
        ("another tenant", {"tenant": "nightly"}),
        ("another pool", {"pool": "large"}),
        ("another limit", {"max_tokens": 5}),
        ("another temperature that is stored", {"temperature": 1, "cache_control": "max-age=60"}),
        ("a member that we do not know", {"style": "short"}),
        (
            "other instructions",
            {
                "messages": [
                    {"role": "system", "content": "Answer in French."},
                    {"role": "user", "content": SAME},
                ]
            },
        ),
    ],
)
async def test_what_else_changes_an_answer_has_to_be_the_same(
    what: str, changed: dict[str, Any]
) -> None:
    rig = Rig()
    await rig.store(ASKED)
    assert outcome(await rig.ask(SAME, **changed)) == "no_candidate", what


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("no user id", {"user": ""}),
        ("two choices", {"n": 2}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("a long number", {"seed": 1234567890123456}),
        (
            "a second turn",
            {
                "messages": [
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "Hello!"},
                    {"role": "user", "content": SAME},
                ]
            },
        ),
        (
            "a picture",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": SAME},
                            {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                        ],
                    }
                ]
            },
        ),
    ],
)
async def test_a_request_that_is_unfit_is_never_compared(
    what: str, changed: dict[str, Any]
) -> None:
    rig = Rig()
    await rig.store(ASKED)
    found = await rig.ask(SAME, **changed)
    assert found.result == "miss"
    assert found.looked is None or found.looked.outcome == "unfit", what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did I just order?", "stateful"),
        ("What is the weather like now?", "stateful"),
        ("Wie koche ich ein Ei?", "unreadable"),
        ("x" * 601, "unfit"),
    ],
)
async def test_texts_that_cannot_stand_alone_are_neither_matched_nor_kept(
    text: str, expected: str
) -> None:
    rig = Rig()
    await rig.store(text)
    found = await rig.ask(f"{text} ", max_tokens=None)
    assert outcome(found) == expected
    assert rig.semantic.partitions.stats().entries == 0


@pytest.mark.parametrize(
    ("similarity", "same", "other"),
    [(0.0, "hit", "refused"), (1.0, "no_candidate", "no_candidate")],
)
async def test_a_threshold_of_0_looks_at_all_and_one_of_1_at_equal_ones(
    similarity: float, same: str, other: str
) -> None:
    rig = Rig(similarity)
    await rig.store(ASKED)
    assert outcome(await rig.ask(SAME)) == same
    assert outcome(await rig.ask("Who wrote Hamlet?")) == other
    assert outcome(await rig.ask("how do I boil an egg")) == "hit"  # the same words


async def test_what_a_client_asks_of_caches_holds_here_too() -> None:
    rig = Rig()
    await rig.store(ASKED)
    rig.now = 20.0
    assert (await rig.ask(SAME, cache_control="no-store")).result == "bypass"
    assert outcome(await rig.ask(SAME, cache_control="no-cache")) == "unfit"
    assert outcome(await rig.ask(SAME, cache_control="max-age=10")) == "refused"
    assert outcome(await rig.ask(SAME, cache_control="max-age=30")) == "hit"
    rig.now = 51.0  # the question's own end; the answer lives on for the same words
    assert outcome(await rig.ask(SAME)) == "no_candidate"
    assert (await rig.ask(ASKED)).result == "hit"


async def test_a_question_goes_with_its_answer_and_with_a_purge() -> None:
    rig = Rig()
    await rig.store(ASKED)
    await rig.caches.exact.purge("acme")
    assert outcome(await rig.ask(SAME)) == "no_candidate"
    await rig.store(ASKED)
    assert outcome(await rig.ask(SAME)) == "hit"
    await rig.caches.exact.purge("acme", "ann")
    assert outcome(await rig.ask(SAME)) == "no_candidate"


async def test_without_a_vector_it_is_a_miss() -> None:
    rig = Rig()
    await rig.store(ASKED)
    rig.words.fails = True
    found = await rig.ask(SAME)
    assert (found.result, outcome(found)) == ("miss", "no_vector")
    assert found.fill


async def test_of_a_burst_of_equal_questions_one_goes_to_the_model() -> None:
    """They all ask for a vector before the first of them is under way."""
    rig = Rig()
    found = await asyncio.gather(*(rig.begin(ASKED) for _ in range(50)))
    leads = [one for one in found if one.under_way is None]
    assert len(leads) == 1
    waits = [one.under_way.landed for one in found if one.under_way]
    rig.answered(leads[0], "Seven minutes.")
    assert len(waits) == 49
    assert all(wait.result() is not None for wait in waits)
    assert outcome(await rig.ask(SAME)) == "hit"


async def test_the_first_hits_and_a_sample_are_answered_by_the_model() -> None:
    rig = Rig(share=0.25, first=20)
    for _ in range(19):
        rig.budget.told("acme", True, 0.0)
    await rig.store(ASKED)
    first = await rig.begin(SAME)
    assert (first.result, outcome(first)) == ("miss", "checked")
    assert first.status == 'forebay; fwd=uri-miss; detail="semantic; checked"'
    rig.answered(first, "About seven minutes.")
    await settled(rig)
    assert rig.budget.counts("acme") == (20, 0)
    outcomes = [outcome(await rig.ask(f"{SAME}{' ' * more}")) for more in range(1, 101)]
    assert 10 <= outcomes.count("checked") <= 40
    assert outcomes.count("hit") == 100 - outcomes.count("checked")


@pytest.mark.parametrize("false_every", [1, 5, 10])
async def test_false_hits_switch_the_tenants_semantic_cache_off_within_200_checks(
    false_every: int,
) -> None:
    rig = Rig(share=1.0)
    await rig.store(ASKED)
    answer = "Seven minutes."
    for number in range(1, 201):
        found = await rig.begin(f"{SAME}{' ' * number}")
        if outcome(found) == "off":
            break
        assert outcome(found) == "checked"
        if number % false_every == 0:
            answer = f"It takes {number} minutes."
        rig.answered(found, answer)
        await settled(rig)
    checked, false = rig.budget.counts("acme")
    assert rig.budget.off() == ["acme"], (checked, false)
    assert checked <= 200
    assert outcome(await rig.ask("anything else")) == "off"
    assert outcome(await rig.ask(SAME, tenant="nightly")) == "no_candidate"  # others go on
    rig.budget.reset("acme")
    assert outcome(await rig.ask(f"{SAME}!")) != "off"


async def test_the_decision_beyond_the_vector_is_quick() -> None:
    rig = Rig(similarity=0.3)
    places = ("Rome", "Paris", "Lima", "Oslo", "Cairo", "Quito", "Delhi", "Tunis")
    for place in places:
        await rig.store(f"What is the best way to cook fish in {place}?")
    took_ms: list[float] = []
    for number in range(600):
        text = f"How do I cook fish in {places[number % 8]}{' ' * (number // 8)}?"
        began = time.process_time()
        found = await rig.ask(text)
        took_ms.append((time.process_time() - began) * 1000)
        assert outcome(found) == "hit"
    # CPU time, all of the look-up; a noisy machine makes single ones slow.
    assert np.percentile(took_ms[100:], 50) < 1.5


async def settled(rig: Rig) -> None:
    await until(lambda: not rig.semantic._checks)  # pyright: ignore[reportPrivateUsage]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")
