"""What Envoy's log says of an answer's end, and when a server is left alone."""

import pytest

from extproc.endings import Ending, Suspicion, ending


@pytest.mark.parametrize(
    ("status", "flags", "has_usage", "how"),
    [
        (200, "-", True, "whole"),
        (200, "-", False, "error"),  # an error event inside
        (400, "-", False, "whole"),  # the server's own refusal
        (429, "-", False, "whole"),
        (500, "-", False, "error"),
        (503, "UH", False, "error"),
        (503, "UC,URX", False, "reset"),
        (503, "UF", False, "reset"),
        (200, "UC", False, "reset"),
        (504, "UT", False, "cut"),
        (200, "UT", False, "cut"),
        (200, "SI", False, "cut"),
        (200, "DT", False, "cut"),
        (200, "DC", False, "client_left"),
        (0, "DC", False, "client_left"),
        (0, "DR", False, "client_left"),
    ],
)
def test_how_an_answer_ended(status: int, flags: str, has_usage: bool, how: Ending) -> None:
    assert (
        ending(
            status,
            "x",
            flags,
            ended_by_us="",
            has_failed=False,
            has_usage=has_usage,
            usage_expected=True,
        )
        == how
    )


@pytest.mark.parametrize("usage_expected", [True, False])
def test_an_answer_that_was_cut_with_its_processor_is_no_fault_of_the_server(
    usage_expected: bool,
) -> None:
    details = "ext_proc_error_gRPC_error_13{upstream_reset_after_response_started}"
    how = ending(
        200,
        details,
        "-",
        ended_by_us="",
        has_failed=False,
        has_usage=False,
        usage_expected=usage_expected,
    )
    assert how == "processor_died"
    suspected: list[str] = []
    suspicion = Suspicion(lambda url, _: suspected.append(url))
    for _ in range(5):
        suspicion.saw("a", how)
    assert suspected == []


def test_a_stall_that_we_ended_is_a_cut() -> None:
    assert (
        ending(
            504,
            "forebay_upstream_stall",
            "-",
            ended_by_us="",
            has_failed=False,
            has_usage=False,
            usage_expected=True,
        )
        == "cut"
    )


def test_no_usage_is_no_error_where_none_is_counted() -> None:
    assert (
        ending(
            200, "x", "-", ended_by_us="", has_failed=False, has_usage=False, usage_expected=False
        )
        == "whole"
    )


def test_three_bad_endings_in_a_row_make_a_server_suspicious_for_longer_each_time() -> None:
    told: list[tuple[str, float]] = []
    suspicion = Suspicion(lambda url, seconds: told.append((url, seconds)))
    for how in ("reset", "error", "client_left", "whole", "cut", "reset", "client_left"):
        suspicion.saw("a", how)
    assert told == []
    suspicion.saw("b", "reset")
    suspicion.saw("a", "error")
    assert told == [("a", 5.0)]
    for _ in range(5):
        suspicion.saw("a", "reset")
    assert [seconds for _, seconds in told] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    suspicion.saw("a", "whole")
    suspicion.saw("a", "reset")
    assert len(told) == 6


@pytest.mark.parametrize(
    ("ended_by_us", "how"),
    [
        *[("deadline", "whole"), ("batch", "whole"), ("budget", "whole")],
        *[("stall", "cut"), ("upstream_error", "error")],
    ],
)
def test_a_stream_that_the_guard_ended_is_called_by_what_its_server_did(
    ended_by_us: str, how: Ending
) -> None:
    told = ending(
        200,
        "x",
        "-",
        ended_by_us=ended_by_us,
        has_failed=False,
        has_usage=False,
        usage_expected=True,
    )
    assert told == how


def test_an_error_event_is_an_error_also_after_a_usage() -> None:
    told = ending(
        200, "x", "-", ended_by_us="", has_failed=True, has_usage=True, usage_expected=False
    )
    assert told == "error"
