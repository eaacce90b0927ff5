"""What Envoy's log says of an answer's end, and when a server is left alone."""

import pytest

from extproc.endings import Ending, Suspicion, ending


@pytest.mark.parametrize(
    ("status", "details", "has_usage", "how"),
    [
        (200, "via_upstream", True, "whole"),
        (200, "via_upstream", False, "error"),  # an error event inside
        (400, "via_upstream", False, "whole"),  # the server's own refusal
        (429, "via_upstream", False, "whole"),
        (500, "via_upstream", False, "error"),
        (503, "no_healthy_upstream", False, "error"),
        (503, "upstream_reset_before_response_started{connection_termination}", False, "reset"),
        (200, "upstream_reset_after_response_started{connection_termination}", False, "reset"),
        (504, "response_timeout", False, "cut"),
        (504, "upstream_response_timeout", False, "cut"),
        (200, "stream_idle_timeout", False, "cut"),
        (504, "forebay_upstream_stall", False, "cut"),
        (200, "downstream_remote_disconnect", False, "client_left"),
        (0, "downstream_remote_disconnect", False, "client_left"),
        (0, "http2.remote_reset", False, "client_left"),
    ],
)
def test_how_an_answer_ended(status: int, details: str, has_usage: bool, how: Ending) -> None:
    assert ending(status, details, has_usage=has_usage, usage_expected=True) == how


def test_no_usage_is_no_error_where_none_is_counted() -> None:
    assert ending(200, "via_upstream", has_usage=False, usage_expected=False) == "whole"


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
