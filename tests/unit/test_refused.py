"""Servers that refuse what the gateway sends: counted each time, told once a minute."""

import logging

import pytest

from extproc.accounting import read
from extproc.refused import STATUSES, Refused
from extproc.wire import REFUSALS
from tests.unit.logged import logged


def test_what_is_retried_is_what_is_told() -> None:
    assert set(REFUSALS.split(",")) == STATUSES


def test_each_is_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    counted: dict[str | tuple[str, ...], float] = {("a", "401"): 0, ("a", "404"): 0}
    refused = Refused(counted, lambda: now)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            refused.saw([("a", "401")], {"a"})
        refused.saw([("a", "404"), ("b", "401"), ("a", "200")], {"a"})
        assert [record.args[:2] for record in caplog.records] == [("a", "401"), ("a", "404")]  # type: ignore[index]
        now = 60.0
        refused.saw([("a", "401")], {"a"})
    assert len(caplog.records) == 3
    assert counted == {("a", "401"): 4, ("a", "404"): 1}


@pytest.mark.parametrize(
    ("told", "tries"),
    [
        ("", ()),
        ("hosted=401;", (("hosted", "401"),)),
        ("hosted=401;large=404;", (("hosted", "401"), ("large", "404"))),
    ],
)
def test_the_log_says_which_tries_were_refused(
    told: str, tries: tuple[tuple[str, str], ...]
) -> None:
    account = read(logged({"kind": "json", "refused": told}))
    assert account
    assert account.refused == tries
