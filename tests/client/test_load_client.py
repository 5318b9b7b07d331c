"""The load generator's client: times and counts of good streams, one clear error for every kind of bad one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_server import FakeServer

from quire.client.address import RemoteError, error_sentence, parse_address
from quire.client.load_client import LoadClient, StreamedAnswer
from quire.client.stream_events import MAX_EVENT_BYTES, EventCutter

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def body(endpoint: str, num_tokens: int) -> bytes:
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "four"}]} if endpoint == "chat" else {"prompt": [1, 2, 3, 4]}
    )
    return json.dumps({**prompt, "max_tokens": num_tokens, "stream": True}).encode()


def stream(url: str, *, num_tokens: int = 8, endpoint: str = "completions", timeout_s: float = 30) -> StreamedAnswer:
    async def ask() -> StreamedAnswer:
        client = LoadClient(parse_address(url), timeout_s)
        answer = await client.stream(PATHS[endpoint], body(endpoint, num_tokens))
        client.close()
        return answer

    return asyncio.run(ask())


@pytest.mark.parametrize("endpoint", PATHS)
def test_a_good_stream(server: FakeServer, endpoint: str) -> None:
    answer = stream(server.url, endpoint=endpoint)
    assert answer.error is None
    assert len(answer.arrivals) == 8, "neither the role nor the finish reason is a token"
    assert answer.arrivals == sorted(answer.arrivals)
    assert answer.start < answer.arrivals[0]
    assert answer.arrivals[-1] <= answer.end
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 8)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("refuse", "answered 400.*this is refused"),
        ("busy", "answered 429"),
        ("hang", "no end after 0.5 s"),
        ("cut", "closed the connection before the stream's end"),
        ("garbage", "no completion chunk"),
        ("error_event", "with an error: the engine died$"),
        ("unfinished", "without a finish reason"),
    ],
)
def test_bad_streams(server: FakeServer, behaviour: str, message: str) -> None:
    server.plan = [behaviour]
    answer = stream(server.url, timeout_s=0.5 if behaviour == "hang" else 30)
    assert answer.error is not None
    assert re.search(message, answer.error)
    assert stream(server.url).error is None, "the server is not to blame for the next one"


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = stream(f"http://127.0.0.1:{port}").error
    assert error is not None
    assert "refused" in error.lower() or "connect" in error.lower()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(handler: Handler, use: Callable[[str], Awaitable[None]]) -> None:
    """Run `use` with the URL of a raw server."""

    tasks: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await handler(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> None:
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await asyncio.gather(*tasks)

    asyncio.run(run())


EVENTS = b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def test_a_path_that_is_no_ascii_is_encoded_as_urls_are() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS))

    async def use(url: str) -> None:
        for path in ("", "/v1", "/a/ä"):
            client = LoadClient(parse_address(url + path), 30)
            assert (await client.stream("/v1/completions", b"")).error is None
            client.close()
        host = url.removeprefix("http://").encode()
        assert all(b"\r\nHost: %s\r\n" % host in head for head in heads)

    against(answer, use)
    assert [head.split()[1] for head in heads] == [*[b"/v1/completions"] * 2, b"/a/%C3%A4/v1/completions"]


def test_connections_are_kept_and_replaced_when_the_server_closed_them() -> None:
    connections: list[int] = []

    async def two_answers_a_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS))
            connections[-1] += 1

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        for _ in range(5):
            assert (await client.stream("/v1/completions", b"")).error is None
        client.close()

    against(two_answers_a_connection, ask)
    assert connections == [2, 2, 1]


def test_a_stream_that_ends_by_closing() -> None:
    async def close_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + EVENTS)

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        answer = await client.stream("/v1/completions", b"")
        client.close()
        assert (answer.error, len(answer.arrivals)) == (None, 1)

    against(close_at_the_end, ask)


def answer_of(events: bytes, *headers: bytes) -> bytes:
    head = b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(events), *headers])
    return head + b"\r\n\r\n" + events


FINISHED = EVENTS.removesuffix(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answer_of(FINISHED), None),
        (answer_of(b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'), None),
        (b"HTTP/1.1 200 OK\r\n\r\n" + FINISHED, "before the stream's end"),
        (b"", "closed the connection"),
    ],
    ids=["finish reason", "done", "closed after the finish reason", "no answer"],
)
def test_what_ends_a_stream(answer: bytes, error: str | None) -> None:
    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        answer = await client.stream("/v1/completions", b"")
        client.close()
        assert (answer.error is None) if error is None else (error in str(answer.error))

    against(answer_and_close, ask)


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (answer_of(EVENTS)[:-20], "before the stream's end"),
        (answer_of(b'data: {"error":"full"}\n\n' + EVENTS)[:-20], "full"),
        (answer_of(EVENTS, b"Connection: close"), None),
    ],
    ids=["cut", "failed", "last"],
)
def test_a_kept_connection_whose_next_answer_is_its_last(second: bytes, error: str | None) -> None:
    """What was heard of is not asked for again, and what comes after it is asked for over another connection."""
    connections: list[int] = []

    async def two_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        for answer in (answer_of(EVENTS), second):
            await reader.readuntil(b"\r\n\r\n")
            connections[-1] += 1
            writer.write(answer)
        if error != "before the stream's end":
            await reader.read()

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        errors = [(await client.stream("/v1/completions", b"")).error for _ in range(3)]
        client.close()
        assert (errors[0], errors[2]) == (None, None)
        assert (errors[1] is None) if error is None else (error in str(errors[1]))

    against(two_answers, ask)
    assert connections == [2, 1]


def test_a_connection_that_was_closed_while_nobody_used_it_is_replaced() -> None:
    closed = asyncio.Event()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer_of(EVENTS))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        assert (await client.stream("/v1/completions", b"")).error is None
        await closed.wait()
        await asyncio.sleep(0.1)
        assert (await client.stream("/v1/completions", b"")).error is None
        client.close()

    against(answer_once, ask)


def test_an_error_without_words_is_called_by_its_kind() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url.replace("http:", "https:")), 10)
        assert (await client.stream("/v1/completions", b"")).error == "ConnectionResetError"

    against(close, ask)


def test_a_server_that_speaks_no_http() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await reader.read()

    async def ask(url: str) -> None:
        client = LoadClient(parse_address(url), 10)
        answer = await client.stream("/v1/completions", b"")
        client.close()
        assert answer.error is not None
        assert "does not speak HTTP" in answer.error

    against(speak, ask)


@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int], newline: bytes) -> None:
    text = (
        b': alive\n\ndata: {"choices":[{"text":"a"}]}\nid: 1\n\nevent: x\ndata: {"choices":\ndata: [{"text":"b"}]}\n\n'
        b'data:{"usage":{"completion_tokens":2}}\n\nid: 2\ndata: [DONE]\n\n'
    ).replace(b"\n", newline)
    cutter, chunks, rest = EventCutter(), [], text
    for cut in cuts:
        chunks += cutter.feed(rest[:cut])
        rest = rest[cut:]
    chunks += cutter.feed(rest)
    assert [chunk.choices[0].text for chunk in chunks if chunk.choices] == ["a", "b"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2
    assert cutter.done


@pytest.mark.parametrize(
    ("choice", "counts", "text"),
    [
        ({"text": "a"}, True, "a"),
        ({"delta": {"role": "assistant", "content": ""}}, False, ""),
        ({"delta": {}, "finish_reason": "stop"}, False, ""),
        ({"delta": {"content": "a"}}, True, "a"),
        ({"delta": {"reasoning": "a"}}, True, ""),
        ({"delta": {"reasoning_content": "a"}}, True, ""),
        ({"delta": {"tool_calls": [{"index": 0}]}}, True, ""),
    ],
)
def test_what_counts_as_output(choice: dict[str, Any], counts: bool, text: str) -> None:
    (chunk,) = EventCutter().feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    assert (chunk.choices[0].adds_output(), chunk.choices[0].shown_text) == (counts, text)


@pytest.mark.parametrize(
    ("error", "text"), [({"message": "full"}, "full"), ({"code": 5}, "{'code': 5}"), ("full", "full"), (["x"], "['x']")]
)
def test_an_error_is_shown_as_a_sentence_where_it_has_one(error: object, text: str) -> None:
    (chunk,) = EventCutter().feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert error_sentence(chunk.error) == text


@pytest.mark.parametrize(
    "event",
    [b"{", b"[]", b'{"choices": [{"text": "\xff"}]}', b'{"more": %s}' % (b"[" * 100_000 + b"]" * 100_000)],
    ids=["cut", "list", "no UTF-8", "nested"],
)
def test_an_event_that_is_no_chunk_is_refused(event: bytes) -> None:
    with pytest.raises(RemoteError, match="no completion chunk"):
        EventCutter().feed(b"data: " + event + b"\n\n")


def test_an_endless_event_is_refused() -> None:
    cutter = EventCutter()
    cutter.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(RemoteError, match="more than"):
        cutter.feed(b"x")
