"""Watches a streamed answer that passes by, so that it can be ended well-formed at any moment.

It passes on whole events only: what has begun and not ended is held, since nothing could be written
after half an event. It must never parse a chunk that it need not: almost all are passed on unread.
"""

import re

from extproc.openai import (
    CHAT,
    EVENT_END,
    Usage,
    before_error,
    ended_choices,
    is_json,
    last_usage,
    partial_ending,
    whole_events,
)

# A longer event is passed on in pieces, and the stream is then left to end as it will.
_MOST_HELD_BYTES = 256 * 1024
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")  # on a line of its own, not in a text
# As JSON is written with and without a space; `null` stands in all chunks but the last.
_FINISH = (b'"finish_reason":"', b'"finish_reason": "')
_USAGE = (b'"usage":{', b'"usage": {')
_CHUNK = b'"choices":'  # not in a text, where quotes are escaped


class Guard:
    """The stream of one exchange. `request_id`, `model`: what the ending is signed with when not a
    single chunk has come. `choices`: how many the answer has."""

    __slots__ = (
        "_begun",
        "_broken",
        "_choices",
        "_chunks",
        "_cut_an_event",
        "_done",
        "_failed",
        "_first",
        "_held",
        "_model",
        "_path",
        "_request_id",
        "_unfinished",
        "_usage_piece",
    )

    def __init__(self, path: str, request_id: str, model: str, choices: int) -> None:
        self._path = path
        self._request_id = request_id
        self._model = model
        self._choices = choices
        self._unfinished = set(range(choices))
        self._first = b""
        self._held = b""
        self._chunks = 0
        self._begun = False
        self._done = False
        self._failed = False
        self._cut_an_event = False
        self._usage_piece = b""
        self._broken = False

    @property
    def can_close(self) -> bool:
        """Whether `closing` may be written now: not before the first piece, which Envoy would
        refuse, and not after half an event or the server's own end."""
        return self._begun and not self._broken

    @property
    def is_whole(self) -> bool:
        """The server has said all: what may be missing is [DONE] or the end of the transfer."""
        return not self._unfinished or self._done

    @property
    def is_done(self) -> bool:
        """[DONE] has come."""
        return self._done

    @property
    def usage(self) -> Usage | None:
        """As the server last told it."""
        return last_usage(self._usage_piece)

    @property
    def tokens_estimate(self) -> int:
        """One for each chunk that has passed; the first of each choice of a chat has none."""
        heads = self._choices if self._path == CHAT else 0
        return max(self._chunks - heads, 0)

    @property
    def has_failed(self) -> bool:
        """The server has sent an error event inside the stream. It does not pass: `closing` ends
        the answer in its place."""
        return self._failed

    def feed(self, piece: bytes) -> bytes:
        """What of the stream may pass now that this piece has come."""
        self._begun = True
        if self._held:
            piece = self._held + piece
            self._held = b""
        if not self._broken and not piece.endswith(b"\n\n"):
            piece = self._whole_events(piece)
        if b'"error"' in piece and (before := before_error(piece)) is not None:
            piece, self._failed = before, True
        if not self._first:
            self._first = _first_event(piece)
        self._chunks += piece.count(_CHUNK)
        if b"[DONE]" in piece and _DONE.search(piece):
            self._done = True
        if _FINISH[0] in piece or _FINISH[1] in piece:
            self._unfinished -= ended_choices(piece)
        if _USAGE[0] in piece or _USAGE[1] in piece:
            self._usage_piece = piece  # read when it is asked for: some servers send it with all
        return piece

    def end(self) -> bytes:
        """The server has closed the stream: what is still held, if it is an event that lacks its
        blank line alone."""
        held, was_broken = self._release(), self._broken
        if held.startswith(b"data:") and not was_broken:
            held = self.feed(held.rstrip(b"\r\n") + b"\n\n")
            if not self._done and not is_json(held[5:]):
                held = b""
        self._broken = True
        return held

    @property
    def lacks_its_end(self) -> bool:
        """The server has closed the stream without [DONE]; `closing` may still be written."""
        return not self._done and not self._cut_an_event

    def closing(self, reason: str, *, with_usage: bool) -> bytes:
        """What ends the answer here and now: for each choice that has not ended a last chunk marked
        incomplete, usage if the client asked for it, [DONE]. What is held is dropped."""
        if self._done:
            return b""
        has_usage = bool(self._usage_piece) and not self._unfinished
        return partial_ending(
            self._path,
            first_chunk=self._first,
            request_id=self._request_id,
            model=self._model,
            reason=reason,
            choices=sorted(self._unfinished),
            tokens_estimate=self.tokens_estimate if with_usage and not has_usage else None,
        )

    def _whole_events(self, piece: bytes) -> bytes:
        end = 0
        for match in EVENT_END.finditer(piece):
            end = match.end()
        self._held = piece[end:]
        if len(self._held) > _MOST_HELD_BYTES:
            self._broken = self._cut_an_event = True
            return piece[:end] + self._release()
        return piece[:end]

    def _release(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _first_event(piece: bytes) -> bytes:
    """The data of the first event with one; empty if there is none (comments come before)."""
    return next((data for _, data in whole_events(piece) if data), b"")
