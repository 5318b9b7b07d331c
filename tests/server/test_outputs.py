"""Merging and collecting streams of outputs, and logprobs that JSON cannot hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.types import Message

from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.errors import GenerationFailedError, InvalidRequestError
from quire.server.logprobs import LOWEST, prompt_logprobs
from quire.server.outputs import collect, merge
from quire.server.sse import EventStream


def output(text: str, index: int = 0, finish_reason: str | None = None) -> RequestOutput:
    sample = CompletionOutput(index, text, [ord(c) for c in text], finish_reason=finish_reason)
    return RequestOutput("0", "p", [1], [sample], finish_reason is not None)


async def stream(*items: Any, closed: list[str] | None = None) -> AsyncGenerator[Any, None]:
    """Gives the items; raises those that are exceptions."""
    try:
        for item in items:
            await asyncio.sleep(0)
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        if closed is not None:
            closed.append(str(items[0]))


def test_deltas_of_samples_that_take_turns_are_collected() -> None:
    parts = [output("a"), output("x", 1), output("b", finish_reason="stop"), output("y", 1, "length")]
    whole = asyncio.run(collect(stream(*parts)))
    assert [(s.index, s.text, s.token_ids, s.finish_reason) for s in whole.outputs] == [
        (0, "ab", [97, 98], "stop"),
        (1, "xy", [120, 121], "length"),
    ]


def test_merging_keeps_each_source_in_order() -> None:
    async def run() -> list[tuple[int, str]]:
        return [item async for item in merge([stream("a", "b", "c"), stream("x"), stream("1", "2")])]

    items = asyncio.run(run())
    assert {number: "".join(item for n, item in items if n == number) for number in range(3)} == {
        0: "abc",
        1: "x",
        2: "12",
    }


def test_nothing_is_handed_out_before_every_source_began() -> None:
    closed: list[str] = []
    seen: list[str] = []

    async def run() -> None:
        refused = stream(InvalidRequestError("too long"), closed=closed)
        async for _, item in merge([stream("a", "b", closed=closed), refused]):
            seen.append(item)

    with pytest.raises(InvalidRequestError, match="too long"):
        asyncio.run(run())
    assert seen == []
    assert sorted(closed) == ["a", "too long"]


def test_a_failure_on_the_way_ends_all_sources() -> None:
    closed: list[str] = []

    async def run() -> None:
        endless = stream(*["a"] * 10_000, closed=closed)
        async for _ in merge([endless, stream("x", GenerationFailedError("broken"), closed=closed)]):
            pass

    with pytest.raises(GenerationFailedError):
        asyncio.run(run())
    assert sorted(closed) == ["a", "x"]


def test_minus_infinity_becomes_a_number() -> None:
    """Case 16 of docs/security.md."""
    shaped = prompt_logprobs([None, {5: Logprob(float("-inf"), None, "x"), 6: Logprob(-1.0, 1, "y")}], 1)
    assert json.loads(msgspec.json.encode(shaped)) == [
        None,
        {
            "5": {"logprob": LOWEST, "rank": None, "decoded_token": "x"},
            "6": {"logprob": -1.0, "rank": 1, "decoded_token": "y"},
        },
    ]


def request_that_stays() -> Request:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def test_a_failure_after_the_first_event_is_an_event() -> None:
    async def run() -> list[Message]:
        request = request_that_stays()
        events = stream(b"data: 1\n\n", GenerationFailedError("The logits are not finite."))
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        response = await EventStream(events).begin(request)
        await response(request.scope, request.receive, send)
        return sent

    start, *bodies = asyncio.run(run())
    assert start["status"] == 200
    chunks = [message["body"] for message in bodies]
    assert chunks[0] == b"data: 1\n\n"
    error = json.loads(chunks[1].removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"]) == ("generation_failed", "The logits are not finite.")
    assert bodies[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_a_failure_before_it_is_raised() -> None:
    with pytest.raises(InvalidRequestError):
        asyncio.run(EventStream(stream(InvalidRequestError("refused"))).begin(request_that_stays()))
