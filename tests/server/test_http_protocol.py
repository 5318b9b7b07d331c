"""Connections that take their time are ended, in both directions; the others go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from quire.server import http_protocol
from quire.server.http_protocol import bounded_protocol

PATIENCE_S = 60
FLOOD = b"x" * 2**16

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

asked: list[str] = []
"""The paths of the requests that reached `app`."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/flood sends for ever, /early before the body came, /half half of it; everything else answers with the body, /late later."""
    asked.append(scope["path"])
    body = b""
    if scope["path"] in ("/early", "/half"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": scope["path"] == "/half"})
    if scope["path"] == "/early":
        return
    if scope["path"] == "/late":
        await asyncio.sleep(0.5)
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


def serve(test: Callable[[Connect, ServerState], Awaitable[None]], keep_alive_s: float = 1, **limits: Any) -> None:
    """No callback of a connection may fail."""

    async def run() -> None:
        failures: list[dict[str, Any]] = []
        state = ServerState()
        protocol = bounded_protocol(**{"reader_timeout_s": 0.3, "max_connections": 100, **limits})
        config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=keep_alive_s)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, failure: failures.append(failure))
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
        assert not failures

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


ONE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"


async def after_one(connect: Connect) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request was answered."""
    reader, writer = await connect()
    writer.write(ONE)
    await reader.readuntil(b"0\r\n\r\n")
    return reader, writer


def test_a_later_head_that_does_not_end_is_408() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await after_one(connect)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await until_closed(state)

    serve(test)


def test_a_later_head_is_bounded_too_and_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", PATIENCE_S)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await after_one(connect)
        for length in (20_000, 20_000, 40_000):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(length // 5000):
                writer.write(b"a" * 5000)
                await asyncio.sleep(0.02)
            if length < http_protocol.MAX_HEAD_SIZE:
                writer.write(b"\r\n\r\n")
                assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        await until_closed(state)

    serve(test)


def test_the_time_of_an_idle_connection_ends_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", PATIENCE_S)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await after_one(connect)
        writer.write(ONE[:5])
        await asyncio.sleep(0.3)
        writer.write(ONE[5:])
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    serve(test, keep_alive_s=0.1)


def test_a_body_has_a_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_TIMEOUT_S", PATIENCE_S)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(ONE[:-1])
        await asyncio.sleep(0.5)
        writer.write(ONE[-1:])
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    serve(test)


def test_the_time_of_a_body_is_its_clients_alone() -> None:
    """Neither that in which the application does not read on, nor that of the answer."""

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        for length in (1, 300_000):
            writer.write(b"POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + b"z" * length)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"\r\n0\r\n\r\n") if length == 1 else await read_off(reader, length)
        writer.close()

    serve(test, reader_timeout_s=PATIENCE_S)


async def read_off(reader: asyncio.StreamReader, length: int) -> None:
    while length > 0:
        length -= (await reader.read(4096)).count(b"z")


def test_an_answer_that_came_before_the_body_leaves_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_TIMEOUT_S", PATIENCE_S)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(ONE[:-1].replace(b" / ", b" /early "))
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(ONE[-1:])
        assert await reader.read() == b""
        writer.close()
        await until_closed(state)

    serve(test)


def test_a_body_that_does_not_parse_behind_half_an_answer_ends_the_connection() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"POST /half HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"1\r\na\r\n")
        writer.write(b"nonsense\r\n\r\n")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await until_closed(state)

    serve(test)


def test_what_follows_on_a_refused_request_is_thrown_away() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        assert (await ask(connect, b"nonsense " * 10_000)).count(b"connection: close") == 1
        await until_closed(state)

    serve(test)


def test_a_client_that_was_refused_and_stays_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.1)

    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        await until_closed(state)
        writer.close()

    serve(test, max_connections=0)


def test_a_reader_that_left_is_not_ended_again() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1000)
        (connection,) = state.connections
        while connection._sending is None:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await until_closed(state)
        await asyncio.sleep(0.5)

    serve(test, reader_timeout_s=0.4)


def test_a_body_that_does_not_end_loses_its_connection() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
        assert answer in (b"", b"reset")
        reader, writer = await connect()
        writer.write(ONE[:20])
        await asyncio.sleep(0.05)
        writer.write(ONE[20:-1])
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await until_closed(state)

    serve(test)


def test_an_idle_connection_is_closed() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")

    serve(test)


def test_a_request_behind_one_that_is_being_answered_is_left_to_another_connection() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d"
        answer = await ask(connect, one % 1 + one % 2)
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert b"\r\n1\r\n" in answer
        assert b"connection: close" in answer
        await until_closed(state)

    serve(test)


def test_one_after_the_other_is_answered_on_one_connection() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        for number in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d" % number)
            answer = await reader.readuntil(b"0\r\n\r\n")
            assert b"\r\n%d\r\n" % number in answer
        writer.close()
        await until_closed(state)

    serve(test)


@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_client_that_leaves_is_noticed_whatever_it_sent_behind(num_requests: int) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n" * num_requests)
        await reader.readexactly(1000)
        writer.transport.abort()
        await until_closed(state)
        while state.tasks:
            await asyncio.sleep(0.01)

    serve(test, reader_timeout_s=PATIENCE_S)


UPGRADE = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@pytest.mark.parametrize("rest", [b"Content-Length: 5\r\n\r\nabcde", CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("step", [1, 40, 1000])
def test_a_wish_for_another_protocol_is_passed_over(step: int, rest: bytes) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        request = b"POST / HTTP/1.1\r\n" + UPGRADE + rest
        reader, writer = await connect()
        for _ in range(2):
            for start in range(0, len(request), step):
                writer.write(request[start : start + step])
                await asyncio.sleep(0)
            answer = await reader.readuntil(b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nabcde\r\n" in answer
        writer.close()
        await until_closed(state)

    serve(test)


def test_without_a_body_too() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n")
        assert answer.count(b"HTTP/1.1 200 ") == 1

    serve(test)


def test_a_body_is_no_request_whatever_protocol_is_wished_for() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        hidden = b"POST /hidden HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\n" + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(hidden))
        await asyncio.sleep(0.05)
        writer.write(hidden)
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert hidden in answer, "the body comes back"
        writer.close()

    serve(test)


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"Content-Length: x\r\n\r\nabcde",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
def test_a_body_of_no_certain_length_is_400_beside_such_a_wish(rest: bytes) -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        answer = await ask(connect, b"POST / HTTP/1.1\r\n" + UPGRADE + rest)
        assert answer.startswith(b"HTTP/1.1 400 ")
        await until_closed(state)

    serve(test)


def test_a_body_that_does_not_parse_is_400() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await ask(connect, head + b"2\r\nab\r\nnonsense\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"does not parse" in answer
        await until_closed(state)

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

    serve(test, reader_timeout_s=3.0)


def test_more_connections_than_files_are_503(monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that are held send no head.
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", PATIENCE_S)

    async def test(connect: Connect, state: ServerState) -> None:
        held = [await connect() for _ in range(3)]
        while len(state.connections) < 3:
            await asyncio.sleep(0.01)
        assert (await ask(connect, b"GET /refused HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        for reader, writer in held:
            writer.write(ONE)
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert "/refused" not in asked
        await until_closed(state)
        assert (await ask(connect, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    serve(test, max_connections=3)


def test_what_does_not_parse_behind_an_answer_leaves_that_whole() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1000)
        writer.write(b"nonsense\r\n\r\n")
        answer = b"".join([await reader.readexactly(100_000) for _ in range(20)])
        assert set(answer) <= set(b"x\r\n0123456789abcdef")
        assert b"400" not in answer.replace(b"10000\r\n", b"")
        writer.transport.abort()
        await until_closed(state)
        while state.tasks:
            await asyncio.sleep(0.01)

    serve(test, reader_timeout_s=PATIENCE_S)
