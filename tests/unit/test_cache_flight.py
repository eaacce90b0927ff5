"""One flight: one asks, the others wait for what comes of it."""

import asyncio

from extproc.cache.flight import Flights


async def test_all_who_wait_get_the_answer_and_the_key_is_free_again() -> None:
    flights: Flights[str, str] = Flights()
    first = flights.begin("key")
    assert first is not None
    assert flights.begin("key") is None
    assert flights.begin("other") is not None
    found = flights.find("key")
    assert found is first
    assert not first.is_awaited
    waiting = [asyncio.shield(first.landed) for _ in range(3)]
    assert first.is_awaited
    first.end("answer")
    assert await asyncio.gather(*waiting) == ["answer"] * 3
    assert flights.find("key") is None
    assert len(flights) == 1


async def test_one_that_fails_tells_so_and_ends_once() -> None:
    flights: Flights[str, str] = Flights()
    first = flights.begin("key")
    assert first is not None
    landed = first.landed
    first.end()
    second = flights.begin("key")
    first.end("too late")
    assert await landed is None
    assert flights.find("key") is second


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    flights: Flights[str, str] = Flights()
    first = flights.begin("key")
    assert first is not None
    one, other = asyncio.shield(first.landed), asyncio.shield(first.landed)
    one.cancel()
    await asyncio.sleep(0)
    first.end("answer")
    assert await other == "answer"
