"""The yardstick: the least that a Python ext_proc server can do. Decides nothing, reads nothing.

A process of its own: `python -m extproc.bench.minimal --listen unix:/path --does pass`.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import uvloop

from extproc import wire

_MESSAGE_LIMIT_BYTES = 32 * 1024 * 1024

_BODY = b'{"id":"chatcmpl-bench","object":"chat.completion","choices":[]}'
_IMMEDIATE = wire.immediate("bench", 200, (("content-type", "application/json"),), _BODY, "bench")

_Context = grpc.aio.ServicerContext


async def _pass(_: object, context: _Context) -> None:
    """Headers, then the buffered body: let both pass. Then wait for the end of the exchange."""
    await context.read()
    await context.write(wire.CONTINUE_HEADERS)
    await context.read()
    await context.write(wire.CONTINUE_BODY)
    await context.read()


async def _show(_: object, context: _Context) -> None:
    """The same for the request and for the answer: no answer can be stored at less."""
    replies = (wire.CONTINUE_HEADERS, wire.CONTINUE_BODY, wire.PASS_ANSWER, wire.PASS_WHOLE)
    for reply in replies:
        await context.read()
        await context.write(reply)
    await context.read()


async def _immediate(_: object, context: _Context) -> None:
    """Headers pass; at the body a constant answer."""
    await context.read()
    await context.write(wire.CONTINUE_HEADERS)
    await context.read()
    await context.write(_IMMEDIATE)


async def _refuse(_: object, context: _Context) -> None:
    """A constant answer at the headers: no exchange can cost less."""
    await context.read()
    await context.write(_IMMEDIATE)


async def _echo(_: object, context: _Context) -> None:
    """The answer's headers pass; each piece of its body goes back as it came."""
    await context.read()
    await context.write(wire.PASS_ANSWER)
    while (data := await context.read()) is not grpc.aio.EOF:
        message = wire.read(data)
        if isinstance(message, wire.AnswerBody):
            await context.write(wire.piece(message.piece, end_of_stream=message.end_of_stream))
        elif isinstance(message, wire.OtherPhase):
            await context.write(message.reply)


DOES: dict[str, Callable[[object, _Context], Awaitable[None]]] = {
    "pass": _pass,
    "show": _show,
    "immediate": _immediate,
    "refuse": _refuse,
    "echo": _echo,
}


async def _serve(listen: str, does: str) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _MESSAGE_LIMIT_BYTES),
            ("grpc.so_reuseport", 0),
        ]
    )
    method = grpc.stream_stream_rpc_method_handler(DOES[does])
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                wire.EXT_PROC_SERVICE, {wire.EXT_PROC_METHOD: method}
            )
        ]
    )
    server.add_insecure_port(listen)
    await server.start()
    await stop.wait()
    await server.stop(None)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--listen", required=True)
    options.add_argument("--does", choices=sorted(DOES), required=True)
    given = options.parse_args()
    uvloop.run(_serve(given.listen, given.does))


if __name__ == "__main__":
    main()
