"""The books of all tenants, in this processor's memory. Bounded: the longest unused go first."""

from collections.abc import Callable

from extproc.limits.book import Book
from extproc.limits.rules import Cost, Levels, Rules, Taken

_MOST_BOOKS = 50_000
_LOOKED_AT = 8


class Books:
    """`clock`: goes on evenly; `wall_clock`: seconds since 1970."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        most_books: int = _MOST_BOOKS,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._most_books = most_books
        self._books: dict[str, Book] = {}
        """By tenant id, the longest unused first."""

    def __len__(self) -> int:
        return len(self._books)

    def book(self, tenant_id: str) -> Book:
        """That of a tenant, which now is the last one used."""
        book = self._books.pop(tenant_id, None)
        if book is None:
            if len(self._books) >= self._most_books:
                self._forget_one()
            book = Book()
            book.at_s = self._clock()
        self._books[tenant_id] = book
        return book

    def look(self, tenant_id: str) -> Book | None:
        """The same without using it."""
        return self._books.get(tenant_id)

    def take(
        self,
        tenant_id: str,
        rules: Rules,
        cost: Cost,
        lease_id: str,
        lease_s: float,
        weight: int = 1,
    ) -> Taken:
        """See Book."""
        return self.book(tenant_id).take(
            rules, cost, lease_id, lease_s, self._clock(), self._wall_clock(), weight
        )

    def settle(self, tenant_id: str, rules: Rules, more: Cost, period: int) -> Levels:
        """See Book."""
        return self.book(tenant_id).settle(rules, more, period, self._clock())

    def release(self, tenant_id: str, lease_id: str) -> None:
        if book := self._books.get(tenant_id):
            book.release(lease_id)

    def _forget_one(self) -> None:
        """The first idle one of the longest unused; if they are all in use, the first of all: its
        tenant begins anew, but memory stays bounded."""
        now_s, wall_s = self._clock(), self._wall_clock()
        oldest = [tenant_id for tenant_id, _ in zip(self._books, range(_LOOKED_AT), strict=False)]
        idle = (one for one in oldest if self._books[one].is_idle(now_s, wall_s))
        del self._books[next(idle, oldest[0])]
