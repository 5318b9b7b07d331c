"""Server-sent events as they leave: their bytes, their headers, and what becomes of a stream whose reader leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from quire.server.serving import ClientGoneError
from quire.server.sse import EventStream, event


class Connection:
    """A client that stays until `leave`; `sent` is what it was sent."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, self.receive)

    async def read(self, response: EventStream) -> None:
        async with asyncio.timeout(30):
            await response(self.request.scope, self.receive, self.send)


async def endless(closed: list[bool], first: bytes | None = b"data: 1\n\n") -> AsyncGenerator[bytes, None]:
    """One event, or none, and no end."""
    try:
        if first is not None:
            yield first
        await asyncio.Event().wait()
    finally:
        closed.append(True)


async def events(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


def test_an_event_is_json_on_a_line_behind_its_name() -> None:
    assert event({"a": [1, float("nan")]}) == b'data: {"a":[1,null]}\n\n'
    assert event("two\nlines", "named") == b'event: named\ndata: "two\\nlines"\n\n'


@pytest.mark.parametrize("begun", [False, True])
def test_no_one_on_the_way_keeps_or_gathers_a_stream(begun: bool) -> None:
    async def run() -> tuple[list[Message], dict[str, str]]:
        connection, chunks = Connection(), (b"data: 1\n\n", b"data: 2\n\n")
        own = {"x-own": "1"}
        if begun:
            response = await EventStream(events(*chunks), own).begin(connection.request)
        else:
            response = EventStream(events(*chunks), own)
        await connection.read(response)
        start, *bodies = connection.sent
        return bodies, {name.decode(): value.decode() for name, value in start["headers"]}

    bodies, headers = asyncio.run(run())
    assert [(message["body"], message["more_body"]) for message in bodies] == [
        (b"data: 1\n\n", True),
        (b"data: 2\n\n", True),
        (b"", False),
    ]
    assert headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "x-own": "1",
    }


def test_events_end_when_their_reader_leaves() -> None:
    async def run() -> tuple[list[bool], list[Any]]:
        connection, closed = Connection(), list[bool]()
        response = await EventStream(endless(closed)).begin(connection.request)
        reading = asyncio.create_task(connection.read(response))
        while len(connection.sent) < 2:
            await asyncio.sleep(0)
        assert not closed
        connection.leave.set()
        await reading
        return list(closed), [message.get("body") for message in connection.sent]

    assert asyncio.run(run()) == ([True], [None, b"data: 1\n\n"])


def test_who_leaves_before_the_first_event_ends_them() -> None:
    async def run() -> list[bool]:
        connection, closed = Connection(), list[bool]()
        beginning = asyncio.create_task(EventStream(endless(closed, first=None)).begin(connection.request))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closed
        connection.leave.set()
        with pytest.raises(ClientGoneError):
            async with asyncio.timeout(30):
                await beginning
        return list(closed)

    assert asyncio.run(run()) == [True]


@pytest.mark.parametrize("num_turns", range(6))
def test_events_are_closed_when_their_beginning_is_given_up(num_turns: int) -> None:
    """In one of these turns of the loop the first event is there and has not been taken."""

    async def run() -> None:
        connection, may_come, closed = Connection(), asyncio.Event(), list[bool]()

        async def later() -> AsyncGenerator[bytes, None]:
            try:
                await may_come.wait()
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                closed.append(True)

        events = later()
        beginning = asyncio.create_task(EventStream(events).begin(connection.request))
        for _ in range(5):
            await asyncio.sleep(0)
        may_come.set()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait({beginning})
        if beginning.cancelled():
            assert closed == [True]
        await events.aclose()

    asyncio.run(run())


def test_events_whose_reader_cannot_be_sent_to_are_closed() -> None:
    async def run() -> list[bool]:
        connection, closed = Connection(), list[bool]()
        response = await EventStream(endless(closed)).begin(connection.request)

        async def send(message: Message) -> None:
            raise OSError

        with pytest.raises(OSError):
            await response(connection.request.scope, connection.receive, send)
        return list(closed)

    assert asyncio.run(run()) == [True]
