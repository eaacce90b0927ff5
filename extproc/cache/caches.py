"""All that a request asks of the caches, in this order: the same request stored, the same one under
way, a question that asks the same. Else it goes on, and others may follow it.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from extproc.cache.exact import ExactCache, Fill, Hit, Look, Place, Query
from extproc.cache.flight import Flight, Flights
from extproc.openai import Answer, UnreadAnswer

if TYPE_CHECKING:  # its parts need packages that most do without
    from extproc.cache.semantic.cache import Looked, SemanticCache


class Seen(NamedTuple):
    """What a look found, as far as it went: a hit ends it, and so does `under_way`, the same
    request of another exchange. `looked`: None where the semantic cache was not asked."""

    exact: Look
    under_way: Flight[bytes, Answer] | None = None
    looked: "Looked | None" = None


class Found(NamedTuple):
    """What there is for a request. `status`: the member of a Cache-Status header (RFC 9211).

    `hit`: its answer. `under_way`: another request asks the same just now; wait for it, or go on.
    `fill`: to store what the model answers. `stale`: an answer that has expired. `looked`: what the
    semantic cache did, where it was asked."""

    result: Literal["hit", "semantic_hit", "miss", "bypass"]
    status: str
    hit: Hit | None = None
    under_way: Flight[bytes, Answer] | None = None
    fill: Fill | None = None
    stale: Hit | None = None
    looked: "Looked | None" = None


BYPASS = Found("bypass", "forebay; fwd=bypass")
"""For a request that is neither looked for nor stored."""


class Caches:
    """`semantic`: None where it is off."""

    def __init__(self, exact: ExactCache, semantic: "SemanticCache | None" = None) -> None:
        self.exact = exact
        self.semantic = semantic
        self._flights: Flights[bytes, Answer] = Flights()

    async def look(self, query: Query, *, judge_all: bool = False) -> Seen:
        """Changes nothing, but that what is read counts as used. `judge_all`: see SemanticCache."""
        exact = await self.exact.look(query)
        place = exact.place
        if place is None or exact.hit is not None:
            return Seen(exact)
        if other := self._followed(exact, place):
            return Seen(exact, under_way=other)
        if self.semantic is None or query.alike_scope is None:
            return Seen(exact)
        looked = await self.semantic.look(
            scope=query.alike_scope,
            place=place,
            pool=query.served_by,
            request=query.request,
            body=query.body,
            policy=exact.policy,
            judge_all=judge_all,
        )
        # While the vector was made the same request may have gone on: of a burst one still leads.
        if looked.found is None and (other := self._followed(exact, place)):
            return Seen(exact, under_way=other)
        return Seen(exact, looked=looked)

    def _followed(self, exact: Look, place: Place) -> Flight[bytes, Answer] | None:
        return self._flights.find(place.key) if exact.policy.may_read else None

    async def look_up(self, query: Query) -> Found:
        """For a request that goes on with what it gets."""
        seen = await self.look(query)
        exact, looked = seen.exact, seen.looked
        place, stale = exact.place, exact.usable
        if place is None:
            return BYPASS
        if exact.hit is not None:
            return Found("hit", exact.hit.status, exact.hit)
        status = "forebay; fwd=uri-miss" if exact.policy.may_read else "forebay; fwd=request"
        fill = self.exact.fill(place, query)
        if seen.under_way is not None:
            return Found("miss", status, under_way=seen.under_way, fill=fill, stale=stale)
        if looked is not None:
            assert self.semantic is not None
            looked = self.semantic.use(looked)
            if looked.outcome == "hit":
                assert looked.found is not None
                hit, similarity = looked.found
                status = f'{hit.status}; detail="semantic; similarity={similarity:.3f}"'
                return Found("semantic_hit", status, hit, looked=looked)
            if looked.outcome == "checked":
                status += '; detail="semantic; checked"'
            _tell_when_stored(self.semantic, looked, fill)
        self.lead(fill)
        return Found("miss", status, fill=fill, stale=stale, looked=looked)

    def lead(self, fill: Fill) -> None:
        """Identical requests may wait for this one from now on, unless they do for another."""
        if fill.flight is None:
            fill.flight = self._flights.begin(fill.place.key)

    @property
    def under_way(self) -> int:
        return len(self._flights)

    async def close(self) -> None:
        if self.semantic is not None:
            await self.semantic.close()
        await self.exact.store.close()


def _tell_when_stored(semantic: "SemanticCache", looked: "Looked", fill: Fill) -> None:
    asked = looked.asked
    if asked is None:
        return

    def stored(answer: Answer | UnreadAnswer) -> None:
        semantic.remember(asked, fill.place.key, fill.ttl_s)
        if looked.found is not None:
            semantic.check(asked, looked.found.hit.answer, answer)

    fill.stored = stored
