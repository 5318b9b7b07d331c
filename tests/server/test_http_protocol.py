"""Connections that take their time are ended, in both directions; the others go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from quire.server import http_protocol
from quire.server.http_protocol import bounded_protocol

PATIENCE_S = 60
FLOOD = b"x" * 2**16

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/flood sends for ever; everything else answers with the body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/flood":
        ended = asyncio.ensure_future(receive())
        while not ended.done():
            await send({"type": "http.response.body", "body": FLOOD, "more_body": True})
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": body})


def serve(test: Callable[[Connect, ServerState], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        state = ServerState()
        protocol = bounded_protocol(**{"reader_timeout_s": 0.3, "max_connections": 100, **limits})
        config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=1)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=raw, limit=4096)

        async with asyncio.timeout(PATIENCE_S):
            await test(connect, state)
        server.close()

    asyncio.run(run())


async def ask(connect: Connect, request: bytes) -> bytes:
    """Everything until the server closes."""
    reader, writer = await connect()
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


async def until_closed(state: ServerState) -> None:
    while state.connections:
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "BODY_TIMEOUT_S", 0.3)


def test_a_head_that_does_not_end_is_408() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert await ask(connect, b"") == b""
        await until_closed(state)

    serve(test)


def test_a_body_that_does_not_end_loses_its_connection() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
        assert answer in (b"", b"reset")
        await until_closed(state)

    serve(test)


def test_an_idle_connection_is_closed() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")

    serve(test)


def test_two_requests_at_once_are_answered_in_order() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d"
        answer = await ask(connect, one % 1 + one % 2)
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert answer.index(b"\r\n1\r\n") < answer.index(b"\r\n2\r\n")

    serve(test)


def test_case_32_a_reader_that_stops_reading_is_aborted_and_others_go_on() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        _, stuck = await connect()
        stuck.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        reader, reading = await connect()
        reading.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        while len(state.connections) < 2:
            await asyncio.sleep(0.01)
        buffers = [connection.transport for connection in state.connections]
        while len(state.connections) == 2:
            await reader.read(4096)
            # One write may be on top of the mark from which a transport wants no more.
            assert all(buffer.get_write_buffer_size() <= 2 * len(FLOOD) + 100 for buffer in buffers)
        for _ in range(1000):
            assert await reader.read(4096)
        stuck.transport.abort()
        reading.transport.abort()
        await until_closed(state)
        while state.tasks:
            await asyncio.sleep(0.01)

    serve(test, reader_timeout_s=1.0)


def test_more_connections_than_files_are_503() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        held = [await connect() for _ in range(3)]
        while len(state.connections) < 3:
            await asyncio.sleep(0.01)
        assert (await ask(connect, b"")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
        await until_closed(state)
        assert (await ask(connect, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    serve(test, max_connections=3)


def test_a_refusal_does_not_fall_into_the_midst_of_an_answer() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1000)
        writer.write(b"nonsense\r\n\r\n")
        answer = b""
        try:
            while piece := await reader.read(2**20):
                answer = answer[-1000:] + piece
        except ConnectionResetError:
            pass
        assert b"400" not in answer
        writer.close()
        await until_closed(state)

    serve(test)
