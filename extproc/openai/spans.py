"""Where the values of a JSON object's members stand in its bytes, so that one can be spliced.

Pure, and linear in the bytes whatever they are. Meets valid JSON only: who calls has had it parsed.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import orjson

from extproc.openai.replies import invalid

MAX_MEMBERS = 1_000  # of one object

Span: TypeAlias = tuple[int, int]  # byte offsets, the end exclusive


def _by_key(*names: str) -> dict[bytes, str]:
    return {name.encode(): name for name in names}


READ_OF_REQUEST = _by_key(
    "model",
    "messages",
    "prompt",
    "tools",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
)
READ_OF_EMBEDDINGS = _by_key("model", "input", "encoding_format")
READ_OF_STREAM_OPTIONS = _by_key("include_usage")

# Patterns see the body after without_quote_escapes, where a string ends at the next quote. All
# repeats are possessive or atomic: the engine never goes back, so time is linear in the bytes.
_STRING = rb'"[^"]*+"'


def _container_pattern(levels: int) -> bytes:
    """A pattern for an array or object that nests at most so deep. Brackets pair up in valid JSON,
    so it need not tell the two kinds apart."""
    between = rb'[^"\[\]{}]*+'
    item, container = _STRING, b""
    for _ in range(levels):
        container = rb"[\[{]%b(?>(?:(?:%b)%b)*)[\]}]" % (between, item, between)
        item = _STRING + b"|" + container
    return container


# Key and value of the next member. A container deeper than the pattern knows matches by its
# opening bracket alone. Tools with JSON schemas go some 8 levels deep.
_MEMBER = re.compile(
    rb'[\s,]*+"([^"]*+)"\s*+:\s*+(%b|%b|[\[{]|[^\s,"\[\]{}]++)' % (_STRING, _container_pattern(12))
)
# For quick_spans: a value without brackets or escapes, and what it looks for.
_SCALAR = re.compile(rb'\s*+:\s*+("[^"\\]*+"|[^\s,"\[\]{}]++)')
_QUICK_BYTES = 64 * 1024
_CONTAINERS = frozenset(("tools", "stream_options"))
_QUOTED = {name: b'"%b"' % key for key, name in READ_OF_REQUEST.items() if name not in _CONTAINERS}
_SPANS_NEEDED = frozenset(("model", "max_tokens", "max_completion_tokens"))
_BRACKET = re.compile(rb"%b|([\[{])|([\]}])" % _STRING)


def without_quote_escapes(body: bytes) -> bytes:
    """The body, same length, with each escaped backslash and each escaped quote blotted out."""
    if b"\\" not in body:
        return body
    # In a run of backslashes each pair from the left is one escape; an odd one out belongs to the
    # character after the run.
    return body.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")


def value_spans(
    body: bytes, plain: bytes, at: int, names: dict[bytes, str], prefix: str = ""
) -> dict[str, Span]:
    """Where the values of these members stand in the object whose first member begins at `at`.
    Raises ApiError if one is there twice."""
    spans: dict[str, Span] = {}
    for key, _, start, end in members_at(body, plain, at):
        name = names.get(key)
        if name is not None:
            if name in spans:
                raise invalid(
                    f"`{prefix}{name}` is in the body twice: send it once.", prefix + name
                )
            spans[name] = (start, end)
    return spans


def members_at(body: bytes, plain: bytes, at: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Of the object whose first member begins at `at`: each key without its escapes, where its
    quote stands, and where its value begins and ends. `plain`: the body without_quote_escapes.
    Raises ApiError where there are too many."""
    escapes = b"\\" in body
    members = 0
    while (member := _MEMBER.match(plain, at)) is not None:
        start, at = member.span(2)
        if at == start + 1 and plain[start] in b"[{":
            at = _container_end(plain, at)
        members += 1
        if members > MAX_MEMBERS:
            raise invalid(
                f"The body has more than {MAX_MEMBERS} members in one object: send fewer."
            )
        key = _unescaped(body, member) if escapes else member[1]
        yield key, member.start(1) - 1, start, at


def quick_spans(body: bytes, members: dict[str, Any]) -> dict[str, Span] | None:
    """The spans of `model` and of the limits, as value_spans finds them, in a third of the time;
    None for a body that is not as most are. `members`: orjson's view of it.

    Without \\u no key hides behind an escape, and inside of a string a quote is escaped: where a
    member is there and its quoted name stands once, there it stands, and not twice.
    """
    if len(body) > _QUICK_BYTES or b"\\u" in body or not _CONTAINERS.isdisjoint(members):
        return None
    spans: dict[str, Span] = {}
    for name in members:
        quoted = _QUOTED.get(name)
        if quoted is None:
            continue
        at = body.find(quoted)
        if at < 0 or body.find(quoted, at + 1) >= 0:
            return None
        if name in _SPANS_NEEDED:
            value = _SCALAR.match(body, at + len(quoted))
            if value is None:
                return None
            spans[name] = value.span(1)
    return spans


def _unescaped(body: bytes, member: re.Match[bytes]) -> bytes:
    """The key of a member as it would be without escapes."""
    key = body[member.start(1) : member.end(1)]
    return orjson.loads(b'"%b"' % key).encode() if b"\\" in key else key


def _container_end(plain: bytes, at: int) -> int:
    """Where the container ends whose opening bracket ends at `at`, however deep it nests."""
    depth = 1
    for token in _BRACKET.finditer(plain, at):
        if token.lastindex == 1:
            depth += 1
        elif token.lastindex == 2:
            depth -= 1
            if depth == 0:
                return token.end()
    raise AssertionError("unbalanced brackets in JSON that orjson accepted")
