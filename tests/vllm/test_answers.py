"""What a client is told through the gateway is what the model said and counted."""

from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai.types import CompletionUsage

from tests.e2e.client import Gateway
from tests.vllm.asked import QUESTION
from tests.vllm.servers import Server

# The same each time it is asked, and not from the cache.
DRAWN_ANEW: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 16,
    "extra_headers": {"cache-control": "no-store"},
}
CHAT: dict[str, Any] = {"model": "small-7b", "messages": QUESTION, **DRAWN_ANEW}
COMPLETION: dict[str, Any] = {"model": "small-7b", "prompt": "The capital of France is"} | (
    DRAWN_ANEW
)
WITH_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def counts(usage: CompletionUsage | None) -> tuple[int, int, int]:
    assert usage
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def text_and_usage(
    stream: Iterable[openai.types.chat.ChatCompletionChunk],
) -> tuple[str, list[CompletionUsage]]:
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    return text, [chunk.usage for chunk in chunks if chunk.usage]


@pytest.fixture
def at_server(small: Server) -> openai.types.chat.ChatCompletion:
    """What the server itself answers to CHAT."""
    answer = small.client().chat.completions.create(**CHAT)
    assert answer.choices[0].message.content
    return answer


def test_a_plain_answer_is_the_servers_own(
    gateway: Gateway, at_server: openai.types.chat.ChatCompletion
) -> None:
    answer = gateway.client().chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == at_server.choices[0].message.content
    assert answer.choices[0].finish_reason == at_server.choices[0].finish_reason
    assert counts(answer.usage) == counts(at_server.usage)


def test_a_streamed_answer_says_the_same_and_hides_the_usage_nobody_asked_for(
    gateway: Gateway, at_server: openai.types.chat.ChatCompletion
) -> None:
    client = gateway.client()
    text, usages = text_and_usage(client.chat.completions.create(**CHAT, stream=True))
    assert text == at_server.choices[0].message.content
    assert usages == []

    text, usages = text_and_usage(client.chat.completions.create(**CHAT, **WITH_USAGE))
    assert text == at_server.choices[0].message.content
    [usage] = usages
    assert counts(usage) == counts(at_server.usage)


def test_the_usage_that_a_stream_hides_is_counted_all_the_same(
    gateway: Gateway, at_server: openai.types.chat.ChatCompletion
) -> None:
    def counted() -> tuple[float, float]:
        gateway.wait_until_accounted()
        start = 'forebay_tokens_total{{kind="{}",pool="small"'
        kinds = ("prompt", "completion")
        prompt, completion = (gateway.metric(start.format(kind)) for kind in kinds)
        return prompt, completion

    before = counted()
    list(gateway.client().chat.completions.create(**CHAT, stream=True))
    prompt, completion, _ = counts(at_server.usage)
    # The client has its [DONE] before the exchange has ended everywhere.
    gateway.until(lambda: counted() != before, "not counted")
    after = counted()
    assert (after[0] - before[0], after[1] - before[1]) == (prompt, completion)


def test_completions_pass_plain_and_streamed(gateway: Gateway, small: Server) -> None:
    straight = small.client().completions.create(**COMPLETION)
    client = gateway.client()
    plain = client.completions.create(**COMPLETION)
    assert plain.choices[0].text == straight.choices[0].text
    assert counts(plain.usage) == counts(straight.usage)

    for more, usages in (({"stream": True}, []), (WITH_USAGE, [counts(straight.usage)])):
        chunks = list(client.completions.create(**COMPLETION, **more))
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        assert text == straight.choices[0].text
        assert [counts(chunk.usage) for chunk in chunks if chunk.usage] == usages


def test_the_second_identical_question_is_answered_from_the_cache(
    gateway: Gateway, small: Server
) -> None:
    asked = CHAT | {"extra_headers": {}, "max_tokens": 12}
    create = gateway.client().chat.completions.with_raw_response.create
    first = create(**asked)
    answered = small.metric("vllm:request_success_total")
    second = create(**asked)
    streamed = create(**asked, **WITH_USAGE)

    assert first.headers["cache-status"] == "forebay; fwd=uri-miss"
    for hit in (second, streamed):
        assert hit.headers["cache-status"].startswith("forebay; hit; ttl=")
    assert small.metric("vllm:request_success_total") == answered, "the server was asked again"

    text = first.parse().choices[0].message.content
    assert text
    assert second.parse().choices[0].message.content == text
    replayed, usages = text_and_usage(streamed.parse())
    assert replayed == text
    assert [counts(usage) for usage in usages] == [counts(first.parse().usage)]
