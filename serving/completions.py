"""A request to the model, top to bottom: received, key, faults, parse, generate, answer.

Must never schedule (`engine/`), and do no more per token than join prepared bytes and write.
"""

import asyncio
import socket
import struct
import time
import uuid
from dataclasses import dataclass

from aiohttp import web

from serving.answers import DONE, ENGINE_DEAD, ERROR_EVENT, KEEP_ALIVE, Answer
from serving.driver import EngineDriver
from serving.engine import HELD, Event, Sequence
from serving.faults import Faults, Strike
from serving.protocol import ApiError, Ask, error_body, parse, parse_embeddings
from serving.received import Received, ReceivedLog
from serving.responses import check_key, json_response, not_found, plain_headers
from serving.settings import SimSettings
from serving.vectors import Vectors

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: close sends RST


class Completions:
    """Answers POST /v1/*."""

    def __init__(
        self, settings: SimSettings, driver: EngineDriver, faults: Faults, log: ReceivedLog
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._faults = faults
        self._log = log

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record the request, act out the faults that strike before an answer, answer it."""
        received = Received(request.path, plain_headers(request), await request.read())
        self._log.add(received)
        self._log.open += 1
        try:
            check_key(request, self._settings.api_key)
            strike = self._faults.strike()
            await asyncio.sleep(strike.latency_s)
            if strike.status is not None:
                received.end("fault")
                return _simulated_error(strike.status, strike.retry_after)
            if strike.reset_before:
                received.end("fault")
                await _reset(request)
            if request.path == "/v1/chat/completions":
                return await self._generate(request, received, strike, chat=True)
            if request.path == "/v1/completions":
                return await self._generate(request, received, strike, chat=False)
            if request.path == "/v1/embeddings":
                return await self._embed(request, received, strike)
            received.end("rejected")
            return not_found()
        except ApiError:
            received.end("rejected")
            raise
        except asyncio.CancelledError:
            received.end("disconnected")
            raise
        finally:
            self._log.open -= 1

    async def _generate(
        self, request: web.Request, received: Received, strike: Strike, *, chat: bool
    ) -> web.StreamResponse:
        ask = parse(received.body, chat=chat, settings=self._settings)
        answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{received.id or uuid.uuid4().hex}"
        model = self._settings.models[0]
        answer = Answer(ask, answer_id=answer_id, model=model, created=int(time.time()))
        return await self._answer(request, received, strike, ask, answer_id, answer)

    async def _embed(
        self, request: web.Request, received: Received, strike: Strike
    ) -> web.StreamResponse:
        asked = parse_embeddings(received.body, self._settings)
        answer_id = f"embd-{received.id or uuid.uuid4().hex}"
        model = self._settings.models[0]
        answer = Vectors(asked, answer_id=answer_id, model=model, created=int(time.time()))
        return await self._answer(request, received, strike, asked.ask, answer_id, answer)

    async def _answer(
        self,
        request: web.Request,
        received: Received,
        strike: Strike,
        ask: Ask,
        answer_id: str,
        answer: Answer,
    ) -> web.StreamResponse:
        job = _Job(ask, answer_id, hold_after=strike.after.tokens if strike.after else None)
        if isinstance(answer, Vectors):
            for sequence in job.sequences:
                sequence.is_vector = True
        received.sequences = job.sequences
        call = _Call(
            request=request,
            received=received,
            strike=strike,
            job=job,
            answer=answer,
            keep_alive_interval_s=self._settings.keep_alive_interval_s,
        )
        self._driver.submit(job.sequences)
        try:
            return await (call.stream() if ask.stream else call.whole())
        finally:
            # Also reached by CancelledError: aiohttp cancels the handler of a client that left.
            self._driver.cancel(job.sequences)


class _Job:
    """The sequences of one request, and their events since its handler last looked.

    A streamed request wakes its handler once per step; any other only when a sequence ends.
    """

    def __init__(self, ask: Ask, answer_id: str, *, hold_after: int | None) -> None:
        self.sequences = [
            Sequence(
                # The id that an abort names: a completion has one for each of its prompts.
                request_id=answer_id if ask.chat else f"{answer_id}-{prompt_index}",
                index=prompt_index * ask.n + choice,
                prompt_tokens=prompt.tokens,
                max_tokens=prompt.max_tokens,
                end_reason=prompt.end_reason,
                hold_after=hold_after,
                deliver=self._deliver,
                block_hashes=prompt.block_hashes,
            )
            for prompt_index, prompt in enumerate(ask.prompts)
            for choice in range(ask.n)
        ]
        self._n = ask.n
        self._every_token = ask.stream
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def cached_tokens(self) -> int:
        """Found in the prefix cache, as vLLM reports them: of the last prompt's first choice."""
        return self.sequences[-self._n].cached_tokens

    async def next_events(self) -> list[Event]:
        """All events since the last call, at least one."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    def _deliver(self, event: Event) -> None:
        if event.ended or self._every_token:
            self._events.append(event)
            if self._waiter and not self._waiter.done():
                self._waiter.set_result(None)


@dataclass(slots=True)
class _Call:
    """One request whose sequences are submitted: waits for them and writes the answer."""

    request: web.Request
    received: Received
    strike: Strike
    job: _Job
    answer: Answer
    keep_alive_interval_s: float | None

    async def stream(self) -> web.StreamResponse:
        """Headers at once; then one write per step; usage and [DONE] go with the last chunk."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(self.request)
        try:
            await self._write_chunks(response)
        except ConnectionResetError:
            self.received.end("disconnected")
        return response

    async def _write_chunks(self, response: web.StreamResponse) -> None:
        events = await self._first_events(response)
        parts: list[bytes] = []
        if events[0].ended != HELD:
            parts.append(self.answer.role_chunks())
        open_choices = len(self.job.sequences)
        while True:
            for sequence, tokens, fresh, ended in events:
                if ended == HELD:
                    await response.write(b"".join(parts))
                    await self._act_out_fault()
                    await response.write_eof(ERROR_EVENT + DONE)
                    return
                if tokens or ended != "abort":  # vLLM says nothing of a choice that never began
                    chunk = self.answer.chunk(sequence.index, tokens, fresh=fresh, ended=ended)
                    parts.append(chunk)
                if ended:
                    open_choices -= 1
                    if not open_choices:
                        parts += (
                            self.answer.usage_chunk(self.job.tokens, self.job.cached_tokens),
                            DONE,
                        )
                        self.received.end(ended)
                        await response.write_eof(b"".join(parts))
                        return
            await response.write(b"".join(parts))
            parts.clear()
            events = await self.job.next_events()

    async def _first_events(self, response: web.StreamResponse) -> list[Event]:
        """Wait for the first token, with keep-alive comments if these are on."""
        while True:
            try:
                async with asyncio.timeout(self.keep_alive_interval_s):
                    return await self.job.next_events()
            except TimeoutError:
                await response.write(KEEP_ALIVE)

    async def whole(self) -> web.StreamResponse:
        """One JSON body when all choices have ended."""
        reasons: dict[int, str] = {}
        while len(reasons) < len(self.job.sequences):
            for sequence, _, _, ended in await self.job.next_events():
                if ended == HELD:
                    await self._act_out_fault()
                    return json_response(error_body(500, ENGINE_DEAD), status=500)
                if ended:
                    reasons[sequence.index] = ended
        self.received.end(reasons[0])
        choices = [(sequence.tokens, reasons[sequence.index]) for sequence in self.job.sequences]
        body = self.answer.whole(choices, self.job.cached_tokens)
        return web.Response(body=body, content_type="application/json")

    async def _act_out_fault(self) -> None:
        """The token that is due now never comes. Returns only if an error is to be written."""
        self.received.end("fault")
        kind = self.strike.after.kind if self.strike.after else None
        if kind == "stall_after":
            await _silence()
        if kind == "reset_after":
            await _reset(self.request)


async def _reset(request: web.Request) -> None:
    """Send a TCP reset, dropping what is unsent. Does not return: the handler gets cancelled."""
    if request.transport is not None:
        connection: socket.socket = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        request.transport.abort()
    await _silence()


async def _silence() -> None:
    """Say nothing until the client leaves, which cancels the handler."""
    await asyncio.Event().wait()


def _simulated_error(status: int, retry_after: float | None) -> web.Response:
    message = "This error is simulated (/sim/faults)."
    response = json_response(error_body(status, message), status=status)
    if retry_after is not None:
        response.headers["Retry-After"] = f"{retry_after:g}"
    return response
