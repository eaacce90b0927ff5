"""The processor's life: the gRPC server that Envoy calls, start and drain.

Holds no policy. Each ext_proc stream becomes one Exchange; the access log feeds accounting.
"""

import asyncio
import gc
import logging
import re
import signal
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from extproc import admin, reload, wire
from extproc.admin import CannotListen
from extproc.config import Config, Stamp
from extproc.exchange import Exchange
from extproc.gateway import Gateway

_log = logging.getLogger(__name__)

# Above any body that Envoy buffers (request_body_buffer_limit, 16 MiB in the reference config): a
# larger message would break the stream instead of answering 413.
_MESSAGE_LIMIT_BYTES = 32 * 1024 * 1024

# After the last exchange Envoy's log still has to tell of it, which it does once a second.
_LAST_LOG_S = 1.5
_LAG_EVERY_S = 0.1
_KEEP_UP_EVERY_S = 1.0
# Envoy resets a stream that is over. To finish it with a status first would be work for nothing,
# and each status that meets a reset costs grpcio some memory for ever (grpc/grpc#43360).
_RESET_WITHIN_S = 0.1


async def serve(config: Config, listen: str, config_file: Path, seen: Stamp | None) -> None:
    """Run until SIGTERM or SIGINT, then drain. `listen`: `unix:/path` or `host:port`.
    `config_file` is where `config` was read from and where a change since `seen` is looked for."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)

    gateway = Gateway(config)
    service = _Service(gateway)
    admin_port = await admin.start(config.admin, gateway, lambda: service.ready)
    background: list[asyncio.Task[None]] = []
    try:
        await gateway.start()
        background += (
            asyncio.create_task(reload.watch(config_file, seen, gateway)),
            asyncio.create_task(_measure_lag(gateway)),
            asyncio.create_task(_keep_up(gateway)),
        )
        await service.start(listen)
        _log.info("listening on %s, admin on %s", listen, config.admin)
        _spare_the_collector()
        await stop.wait()
        grace_s = gateway.policy.config.drain_s
        _log.info("draining for at most %g s", grace_s)
        await service.drain(grace_s)
    finally:
        for task in background:
            task.cancel()
        await gateway.close()
        await admin_port.cleanup()


def _spare_the_collector() -> None:
    """What was made so far stays for good: do not look through it again. An exchange's objects go
    by reference count; young ones are looked through every few hundred exchanges."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


async def _measure_lag(gateway: Gateway) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        gateway.metrics.loop_lag.observe(max(clock() - due, 0.0))


async def _keep_up(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(_KEEP_UP_EVERY_S)
        try:
            gateway.keep_up()
        except Exception as error:  # the next time may go well, and must come
            _log.error("marks and leases were not looked after: %s", type(error).__name__)


class _Service:
    """The gRPC server: ext_proc, access log and health on one address."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._health = health.aio.HealthServicer()
        self.ready = False
        self._exchanges = 0
        self._idle = asyncio.Event()  # no exchange runs
        self._idle.set()
        self._over: list[asyncio.Future[None]] = []  # exchanges that wait for their reset
        self._loop = asyncio.get_running_loop()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MESSAGE_LIMIT_BYTES),
                ("grpc.max_send_message_length", _MESSAGE_LIMIT_BYTES),
                ("grpc.so_reuseport", 0),
                # Envoy may ping an idle connection; that must not close it.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ]
        )
        process = grpc.stream_stream_rpc_method_handler(self._process)
        log = grpc.unary_unary_rpc_method_handler(self._log)
        serving = grpc.method_handlers_generic_handler
        self._server.add_generic_rpc_handlers(  # they are asked in order, for each request
            [
                serving(wire.EXT_PROC_SERVICE, {wire.EXT_PROC_METHOD: process}),
                serving(wire.ACCESS_LOG_SERVICE, {wire.ACCESS_LOG_METHOD: log}),
            ]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, listen: str) -> None:
        if not re.fullmatch(r"unix:.+|[^:\s]+:\d{1,5}|\[[^\]]+\]:\d{1,5}", listen):
            raise CannotListen(f"{listen}: write unix:/path or host:port")
        if listen.startswith("unix:"):
            folder = Path(listen.removeprefix("unix:")).parent
            if not folder.is_dir():
                raise CannotListen(f"{listen}: the folder {folder} does not exist; create it")
        try:
            self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise CannotListen(
                f"{listen}: cannot listen there; is another processor running, or the path longer "
                "than 107 bytes?"
            ) from error
        await self._server.start()
        await self._set_ready(True)

    async def drain(self, grace_s: float) -> None:
        """Running exchanges finish, and Envoy tells of them; new ones are refused: another
        processor takes them, or Envoy answers 503."""
        await self._set_ready(False)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
            await asyncio.sleep(_LAST_LOG_S)
        await self._server.stop(None)

    async def _set_ready(self, ready: bool) -> None:
        self.ready = ready
        status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
        for name in ("", wire.EXT_PROC_SERVICE):
            await self._health.set(name, status)

    async def _process(self, _: object, context: grpc.aio.ServicerContext) -> None:
        if not self.ready:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        stream = _GrpcStream(context)
        self._exchanges += 1
        self._idle.clear()
        try:
            await Exchange(self._gateway, stream).run()
        except Exception as error:
            # Never the message: it might hold a piece of a prompt. Envoy takes the failed stream
            # as not admitted and answers 503.
            where = error.__traceback__
            while where and where.tb_next:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_qualname}:{where.tb_lineno}" if where else "?"
            _log.error("exchange failed: %s in %s", type(error).__name__, place)
            raise RuntimeError("exchange failed") from None
        finally:
            stream.close()
            self._exchanges -= 1
            if not self._exchanges:
                self._idle.set()
        await self._until_reset()  # which ends here, cancelled

    async def _until_reset(self) -> None:
        """Until Envoy resets the stream, for about _RESET_WITHIN_S at most. One timer for all
        that are over by then: a timer for each would cost more than its counters."""
        waiter = self._loop.create_future()
        self._over.append(waiter)
        if len(self._over) == 1:
            self._loop.call_later(_RESET_WITHIN_S, self._no_reset)
        await waiter

    def _no_reset(self) -> None:
        over, self._over = self._over, []
        for waiter in over:
            if not waiter.done():
                waiter.set_result(None)

    async def _log(self, data: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """An entry that cannot be counted must not cost the others of its batch."""
        for entry in wire.read_log(data):
            try:
                self._gateway.finished.account(entry)
            except Exception as error:
                _log.error("a log entry was not counted: %s", type(error).__name__)
        return wire.LOG_REPLY


class _GrpcStream:
    """An Exchange's view of the gRPC stream; owns at most one read under way."""

    __slots__ = ("_context", "_reading", "send")

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self.send = context.write
        self._reading: asyncio.Task[wire.Message | None] | None = None

    async def receive(self) -> wire.Message | None:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            return await reading
        data = await self._context.read()  # as _read does, without one more coroutine
        return None if data is grpc.aio.EOF else wire.read(data)

    def receiving(self) -> asyncio.Task[wire.Message | None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return self._reading

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> wire.Message | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else wire.read(data)
