"""From an access log entry to tokens and times."""

import pytest

from extproc import accounting
from extproc.limits import Charged
from extproc.openai import Usage
from tests.unit.logged import logged

STREAM = {
    "kind": "stream",
    "tenant": "acme",
    "prompt_tokens": "12",
    "cached_tokens": "-",
    "completion_tokens": "11",
    "ttft_us": "250000",
    "generation_us": "1000000",
}


def test_a_streamed_answer_has_a_time_to_first_token_and_one_per_token_after_it() -> None:
    account = accounting.read(logged(STREAM))
    assert account
    assert (account.tenant, account.prompt_tokens, account.cached_tokens) == ("acme", 12, None)
    assert account.ttft_s == pytest.approx(0.25)
    assert account.tpot_s == pytest.approx(0.1)


def test_a_json_answer_has_tokens_but_no_time_to_a_first_token() -> None:
    account = accounting.read(logged(STREAM | {"kind": "json"}))
    assert account
    assert (account.completion_tokens, account.ttft_s, account.tpot_s) == (11, None, None)


def test_a_bill_says_what_the_cost_depends_on() -> None:
    account = accounting.read(
        logged(STREAM | {"bill": "small 99 40 search batch large 3 64 512 70:9000:20000 a cme"})
    )
    assert account
    assert account.bill == accounting.Bill("search", True, "large", 3, 64, 512)
    assert account.charge == accounting.Charge("small", 99, 40, "a cme", Charged(70, 9000, 20000))


@pytest.mark.parametrize(
    "bill",
    [
        *("-", "", "small 9 9 search batch large 3 64", "a b c d e f g h i j"),
        *("a 1 1 b c d 1 -1 2 x", "small 9 search batch large 3 64 512 before the prompt"),
    ],
)
def test_without_a_bill_that_can_be_read_nothing_special_is_assumed(bill: str) -> None:
    account = accounting.read(logged(STREAM | {"bill": bill}))
    assert account
    assert account.bill == accounting.Bill()
    assert account.charge is None


@pytest.mark.parametrize("number", ["-5", "1e300", "nan", "inf", "x", ""])
def test_a_number_that_makes_no_sense_is_none(number: str) -> None:
    account = accounting.read(logged(STREAM | {"completion_tokens": number}))
    assert account
    assert account.completion_tokens is None


@pytest.mark.parametrize("change", [{"generation_us": "-"}, {"completion_tokens": "1"}])
def test_a_cut_stream_and_a_single_token_have_no_time_per_token(change: dict[str, str]) -> None:
    account = accounting.read(logged(STREAM | change))
    assert account
    assert account.tpot_s is None


def test_what_the_processor_did_not_admit_is_not_accounted() -> None:
    assert accounting.read(logged(STREAM | {"kind": "-"})) is None
    assert accounting.read("") is None


def test_what_the_guard_of_a_stream_saw_counts_where_envoy_counted_nothing() -> None:
    uncounted = STREAM | {"prompt_tokens": "-", "completion_tokens": "-"}
    seen = accounting.guarded("", Usage(9, None, 5), 6)
    account = accounting.read(logged(uncounted | {"guarded": seen}))
    assert account
    assert (account.prompt_tokens, account.cached_tokens, account.completion_tokens) == (9, None, 5)
    assert (account.ended_by_us, account.completion_estimate) == ("", None)
    assert account.tpot_s == pytest.approx(1.0 / 4)
    both = accounting.read(logged(STREAM | {"guarded": seen}))
    assert both
    assert (both.prompt_tokens, both.completion_tokens) == (12, 11)  # Envoy's, and once


def test_a_stream_that_the_guard_ended_has_an_estimate_and_no_count() -> None:
    uncounted = STREAM | {"completion_tokens": "-"}
    account = accounting.read(logged(uncounted | {"guarded": accounting.guarded("stall", None, 6)}))
    assert account
    assert account.completion_tokens is None
    assert (account.ended_by_us, account.completion_estimate) == ("stall", 6)


@pytest.mark.parametrize("tag", ["-", "", "a b", "- x y z w"])
def test_a_guards_word_that_makes_no_sense_is_none(tag: str) -> None:
    account = accounting.read(logged(STREAM | {"completion_tokens": "-", "guarded": tag}))
    assert account
    assert (account.completion_tokens, account.completion_estimate) == (None, None)
    assert account.ended_by_us == ""


def test_comments_before_the_first_event_are_no_first_token() -> None:
    account = accounting.read(logged(STREAM | {"server_ttft_us": "200000", "alive_us": "500000"}))
    assert account
    assert account.ttft_s == pytest.approx(0.75)
    assert account.server_ttft_s == pytest.approx(0.7)
    assert account.tpot_s == pytest.approx(0.05)


def test_a_stream_of_comments_alone_has_no_times_and_no_bytes() -> None:
    account = accounting.read(logged(STREAM | {"body_bytes": "99", "alive_us": "only"}))
    assert account
    assert (account.ttft_s, account.tpot_s, account.body_bytes) == (None, None, 0)
