"""What a client has at an engine in another process: each answer goes to who asked, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.small_tokenizers import small_tokenizer

from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.engine.pending_calls import PendingCalls
from quire.engine.pending_requests import PendingRequests
from quire.engine.stream import Stream
from quire.errors import EngineDeadError, InvalidRequestError


def request(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[0],
        sampling_params=SamplingParams(max_tokens=20),
        max_num_tokens=21,
        arrival_time=0.0,
    )


def pending_requests() -> PendingRequests:
    requests = PendingRequests()
    requests.begin(small_tokenizer("byte-level"))
    return requests


async def end_of(stream: Stream) -> str:
    """The error that it ends with."""
    async with asyncio.timeout(30):
        with pytest.raises((EngineDeadError, InvalidRequestError)) as caught:
            await stream.get()
    return str(caught.value)


def test_an_id_has_one_stream_until_that_ends() -> None:
    async def test() -> None:
        requests, first, second = pending_requests(), Stream(), Stream()
        requests.add(request("a"), first)
        with pytest.raises(InvalidRequestError, match="already running"):
            requests.add(request("a"), second)
        assert not requests.drop("a", second), "it is another's"
        assert requests.drop("a", first)
        assert not requests.drop("a", first)
        requests.add(request("a"), second)
        assert not requests.drop("a", first), "the id is another's by now"
        requests.give_up(["a", "unknown"], EngineDeadError("given up"))
        assert await end_of(second) == "given up"
        assert not requests.drop("a", second), "it has ended"
        requests.add(request("a"), first)
        requests.abort("a")
        output = await first.get()
        assert isinstance(output, RequestOutput)
        assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
        requests.abort("a")
        assert not requests.drop("a", first), "it has ended"

    asyncio.run(test())


def test_a_death_ends_all_streams_and_lets_none_begin() -> None:
    async def test() -> None:
        requests, streams = pending_requests(), {name: Stream() for name in "ab"}
        for name, stream in streams.items():
            requests.add(request(name), stream)
        requests.check_not_dead()
        requests.die(EngineDeadError("first"))
        requests.die(EngineDeadError("second"))
        assert [await end_of(stream) for stream in streams.values()] == ["first", "first"]
        with pytest.raises(EngineDeadError, match="first"):
            requests.check_not_dead()
        with pytest.raises(EngineDeadError, match="first"):
            requests.add(request("c"), Stream())

    asyncio.run(test())


def test_each_call_gets_its_own_answer() -> None:
    async def test() -> None:
        calls, ids = PendingCalls(), list[int]()
        waiting = [asyncio.create_task(calls.ask(ids.append, 30)) for _ in range(3)]
        await asyncio.sleep(0)
        calls.answer(ids[2], True)
        calls.answer(ids[0], False)
        calls.answer(ids[0], True)
        calls.answer(99, True)
        calls.fail(EngineDeadError("gone"))
        calls.fail(EngineDeadError("gone twice"))
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert (answers[0], str(answers[1]), answers[2]) == (False, "gone", True)
        assert not calls._answers

    asyncio.run(test())


def test_an_answer_that_comes_too_late_is_nobodys() -> None:
    async def test() -> None:
        calls, ids = PendingCalls(), list[int]()
        with pytest.raises(TimeoutError):
            await calls.ask(ids.append, 0.001)
        calls.answer(ids[0], True)
        assert not calls._answers

    asyncio.run(test())
