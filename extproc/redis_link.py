"""The way to Redis: a time limit for every question, writes that nobody waits for, and a circuit
that opens when Redis does not answer. No answer of it may be believed to be the one asked for
(who asks checks that), and neither a key nor a value nor the password may get into a log.
"""

import asyncio
import hashlib
import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, ResponseError

_log = logging.getLogger(__name__)

# A look-up that is given up runs on for so long, so that a connection that is slow to be made
# (TLS) is there for the next one, and one whose answer is late need not be made again.
LAST_S = 1.0
_PURGE_S = 2.0
_FAILURES = 5  # in a row, then the circuit opens
_FIRST_PROBE_S = 0.1
_ASKING_EACH = 8  # look-ups at once for each connection, those that were given up included
_MOST_WRITES = 512
_MOST_WRITE_BYTES = 16 * 1024 * 1024
_CLOSING_S = 0.5
_PROBE_KEY = "forebay:probe"
Command: TypeAlias = tuple[str | bytes | int, ...]
Why: TypeAlias = Literal["timeout", "unreachable", "refused", "busy", "circuit"]


class Away(Exception):
    """There is no answer, or none of use."""


class Script:
    """One that Redis runs as a whole: nobody else's command comes between its steps."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_text(self, keys: tuple[bytes, ...], *args: str | bytes | int) -> Command:
        return ("EVAL", self.text, len(keys), *keys, *args)

    def by_name(self, keys: tuple[bytes, ...], *args: str | bytes | int) -> Command:
        """Redis knows it by that once it has run it, until it is restarted or told to forget."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)


class Settings(NamedTuple):
    """`url`: redis://host:port/db or rediss://, without a credential."""

    url: str
    username: str | None = None
    password: str | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    cluster: bool = False
    connections: int = 8
    time_limit_s: float = 0.02
    probe_s: float = 2.0
    """While Redis is away it is asked again that often, more often at first."""
    block: str = "forebay.cache.store.redis"
    """Of the config, where all this stands."""
    while_away: str = "caches miss"
    """What Redis' users do then, for the log."""

    @property
    def advice(self) -> str:
        return f"See {self.block}: url, password_file, ca_file, time_limit."

    def __repr__(self) -> str:
        return f"Settings({self.url})"


class _Client(Protocol):
    async def execute_command(self, *args: str | bytes | int) -> Any: ...
    def pipeline(self, transaction: bool) -> Any: ...
    async def aclose(self) -> None: ...


class _Write(NamedTuple):
    commands: tuple[Command, ...]
    size: int
    over: Callable[[bool], None]
    told: Callable[[list[Any]], None] | None
    lost: Callable[[bool], None] | None


class Link:
    """`ask` for look-ups, `write` for what nobody waits for, `insist` for an operator."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failed: Counter[Why | Literal["unwritten", "dropped"]] = Counter()
        """Look-ups by why they were none; writes that failed, and that were too many."""
        self.is_open = False
        """Redis is taken to be away: nothing is asked or written."""
        self._client = _client(settings)
        self._room = asyncio.Semaphore(settings.connections)
        self._most_asking = settings.connections * _ASKING_EACH
        self._asking: set[asyncio.Task[Any]] = set()
        self._failures = 0
        self._was_told = False  # that Redis is away; until it has answered a look-up
        self._probe_in_s = _FIRST_PROBE_S
        self._probing: asyncio.Task[None] | None = None
        self._writes: deque[_Write] = deque()
        self._write_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    # --- look-ups -------------------------------------------------------------------------------

    async def ask(self, *command: str | bytes | int) -> Any:
        """Redis' answer, which may have any shape. Raises Away after the time limit at the latest;
        at once, if the circuit is open or too many ask."""
        return await self._ask(command)

    async def run(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        *args: str | bytes | int,
        late: Callable[[Any], None],
    ) -> Any:
        """The same, of a script. `late` gets an answer that comes when nobody waits for it any
        more: what the script did may have to be undone."""
        return await self._ask(
            script.by_name(keys, *args), otherwise=script.by_text(keys, *args), late=late
        )

    async def _ask(
        self,
        command: Command,
        otherwise: Command | None = None,
        late: Callable[[Any], None] | None = None,
    ) -> Any:
        if self.is_open or self._closed:
            self._give_up("circuit")
        if len(self._asking) >= self._most_asking:
            self._give_up("busy")
        task = asyncio.create_task(self._send(command, otherwise))
        self._asking.add(task)
        task.add_done_callback(self._asked)
        # Not cancelled: see LAST_S.
        try:
            await asyncio.wait((task,), timeout=self.settings.time_limit_s)
        except asyncio.CancelledError:
            _hand_over(task, late)
            raise
        if not task.done():
            _hand_over(task, late)
            self._fail("timeout", "no answer in time")
        if task.cancelled():  # by close
            self._give_up("circuit")
        if (error := task.exception()) is not None:
            self._fail(_why(error), type(error).__name__)
        self._failures = 0
        if self._was_told:
            self._was_told, self._probe_in_s = False, _FIRST_PROBE_S
            _log.info("Redis answers again (%s)", self.settings.block)
        return task.result()

    async def _send(self, command: Command, otherwise: Command | None) -> Any:
        async with asyncio.timeout(LAST_S), self._room:
            try:
                return await self._client.execute_command(*command)
            except NoScriptError:
                if otherwise is None:
                    raise
                return await self._client.execute_command(*otherwise)

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # of one that was given up nobody else takes it

    def _give_up(self, why: Why) -> NoReturn:
        self.failed[why] += 1
        raise Away

    def _fail(self, why: Why, words: str) -> NoReturn:
        self._failures += 1
        if self._failures >= _FAILURES and not self.is_open and not self._closed:
            self.is_open = True
            settings = self.settings
            if not self._was_told:
                self._was_told = True
                _log.warning(
                    "Redis is away (%s); %s until it answers again. %s",
                    words,
                    settings.while_away,
                    settings.advice,
                )
            self._probing = asyncio.create_task(self._probe())
        self._give_up(why)

    async def _probe(self) -> None:
        """One that answers a probe and refuses all else (no memory left, a replica) is tried as
        seldom as one that is gone."""
        while True:
            await asyncio.sleep(self._probe_in_s * random.uniform(0.5, 1.0))
            self._probe_in_s = min(self._probe_in_s * 2, self.settings.probe_s)
            try:
                async with asyncio.timeout(LAST_S):  # it may have to connect
                    await self._client.execute_command("GET", _PROBE_KEY)
                async with asyncio.timeout(self.settings.time_limit_s):
                    await self._client.execute_command("GET", _PROBE_KEY)
            except Exception:  # whatever the client makes of what is there now
                continue
            self.is_open, self._failures = False, 0
            return

    # --- writes ---------------------------------------------------------------------------------

    def write(
        self,
        *commands: Command,
        size: int,
        over: Callable[[bool], None] = lambda written: None,
        told: Callable[[list[Any]], None] | None = None,
        lost: Callable[[bool], None] | None = None,
    ) -> bool:
        """Have them done, in order, some time soon. False: they are dropped, since Redis is away or
        too many wait. `over` is told in the end whether they were done, `told` what Redis answered
        to each, `lost` that it has not answered: true if it may have done them all the same."""
        full = len(self._writes) >= _MOST_WRITES or self._write_bytes + size > _MOST_WRITE_BYTES
        if self.is_open or self._closed or full:
            self.failed["dropped"] += 1
            return False
        self._writes.append(_Write(commands, size, over, told, lost))
        self._write_bytes += size
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return True

    async def _write_all(self) -> None:
        while self._writes:
            write = self._writes[0]
            written = await self._written(write)
            self._writes.popleft()
            self._write_bytes -= write.size
            if not written:
                self.failed["unwritten"] += 1
            write.over(written)

    async def _written(self, write: _Write) -> bool:
        if self.is_open:
            if write.lost is not None:
                write.lost(False)
            return False
        try:
            async with asyncio.timeout(LAST_S):
                if len(write.commands) == 1:
                    answers = [await self._client.execute_command(*write.commands[0])]
                else:
                    pipeline = self._client.pipeline(transaction=False)
                    for command in write.commands:
                        pipeline.execute_command(*command)
                    answers = await pipeline.execute()
        except Exception as error:  # a look-up will find out what it is
            why = _why(error)
            if write.lost is not None and why != "refused":
                write.lost(why == "timeout")
            return False
        if write.told is not None:
            try:
                write.told(answers)
            except Exception as error:  # else what waits behind it would never be written
                _log.error("an answer of Redis was not used: %s", type(error).__name__)
        return True

    # --- an operator's wish ---------------------------------------------------------------------

    async def insist(self, *command: str | bytes | int) -> None:
        """Ask whatever the circuit says. Raises Away, with the reason as its message."""
        try:
            async with asyncio.timeout(_PURGE_S):
                await self._client.execute_command(*command)
        except Exception as error:
            raise Away(type(error).__name__) from None  # its text may hold what was asked

    async def close(self) -> None:
        """What waits to be written gets a moment; then all that runs is ended."""
        self._closed = True
        if self._writing is not None and not self.is_open:
            await asyncio.wait((self._writing,), timeout=_CLOSING_S)
        tasks = [task for task in (self._writing, self._probing, *self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(Exception):
            async with asyncio.timeout(_CLOSING_S):
                await self._client.aclose()


def _hand_over(task: "asyncio.Task[Any]", late: Callable[[Any], None] | None) -> None:
    if late is None:
        return

    def done(task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is None:
            late(task.result())

    task.add_done_callback(done)


def _why(error: BaseException) -> Why:
    if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":
        return "timeout"
    if isinstance(error, ResponseError | AuthenticationError):
        return "refused"
    return "unreachable"


def _client(settings: Settings) -> _Client:
    tls: dict[str, Any] = {}
    if settings.url.startswith("rediss:"):
        tls = {
            "ssl_ca_certs": settings.ca_file and str(settings.ca_file),
            "ssl_certfile": settings.cert_file and str(settings.cert_file),
            "ssl_keyfile": settings.key_file and str(settings.key_file),
        }
    kind: Any = RedisCluster if settings.cluster else Redis
    client = kind.from_url(
        settings.url,
        username=settings.username,
        password=settings.password,
        protocol=2,
        # A connection each for the writes, a probe and a purge.
        max_connections=settings.connections + 3,
        socket_timeout=LAST_S,
        socket_connect_timeout=LAST_S,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        **tls,
    )
    return cast("_Client", client)
