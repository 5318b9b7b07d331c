"""From a request's body to the engine and back: how it is asked, and in whose words its failures are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from tests.server.records import generating_server
from tests.server.test_answer_writers import PLAIN_TURN, TURN, message_writer, outputs
from tests.server.test_outputs import request_that_stays
from tests.server.test_serving import request

from quire.config import ServerConfig
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.errors import EngineDeadError, InvalidRequestError, PromptTooLongError
from quire.server.admission import Admission
from quire.server.answering import chat_params, respond, sampling_params, write_events
from quire.server.schemas.messages import MessagesRequest
from quire.server.sse import EventStream


def body(**fields: Any) -> MessagesRequest:
    return MessagesRequest.model_validate(
        {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    )


def state(config: ServerConfig | None = None, fails_with: Exception | None = None, num_outputs: int = 0) -> Any:
    """A server whose engine fails after some outputs."""

    async def generate(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        for output in outputs(["some", " text"])[:num_outputs]:
            yield output
        if fails_with is not None:
            raise fails_with

    return generating_server(generate, config)


async def answer(server: Any, asked: MessagesRequest, prompts: tuple[str, ...] = ("messages",)) -> Any:
    here = Request(request(server).scope, request_that_stays().receive)
    return await respond(
        here, asked, dict.fromkeys(prompts, "Hi"), SamplingParams(), message_writer(), structure_field="output_config"
    )


def test_a_stream_that_fails_says_so_as_its_api_does() -> None:
    async def run() -> list[bytes]:
        sent: list[bytes] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message.get("body", b""))

        server = state(fails_with=EngineDeadError("The engine stopped."), num_outputs=2)
        stream = await answer(server, body(stream=True, request_id="mine"))
        assert isinstance(stream, EventStream)
        assert stream.headers["x-request-id"] == "mine"
        stays = request_that_stays()
        await stream(stays.scope, stays.receive, send)
        return [chunk for chunk in sent if chunk]

    name, data = asyncio.run(run())[-1].decode().split("\n")[:2]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(("prompts", "message"), [(("a",), "Too long."), (("a", "b"), "a: Too long.")])
@pytest.mark.parametrize("stream", [True, False])
def test_a_refused_prompt_is_told_apart_only_from_others(prompts: tuple[str, ...], message: str, stream: bool) -> None:
    server = state(fails_with=PromptTooLongError("Too long.", field="prompt"))
    server.admission = Admission(2, 2)
    with pytest.raises(PromptTooLongError) as refused:
        asyncio.run(answer(server, body(stream=stream), prompts))
    assert (str(refused.value), refused.value.field) == (message, "a")


@pytest.mark.parametrize("stream", [True, False])
def test_a_shape_that_the_engine_refuses_is_called_what_the_request_calls_it(stream: bool) -> None:
    server = state(fails_with=InvalidRequestError("No.", field="structured_outputs"))
    with pytest.raises(InvalidRequestError) as refused:
        asyncio.run(answer(server, body(stream=stream)))
    assert refused.value.field == "output_config"


def test_tokens_are_told_one_by_one_where_somebody_waits_for_the_first() -> None:
    waits = state(ServerConfig(queue_timeout=5))
    for server, stream, kind in (
        (state(), True, OutputKind.DELTA),
        (state(), False, OutputKind.FINAL_ONLY),
        (waits, False, OutputKind.DELTA),
    ):
        assert sampling_params(server, body(stream=stream), None).output_kind == kind


def test_marks_that_are_special_tokens_are_asked_for() -> None:
    marked = replace(TURN, answer_format=replace(TURN.answer_format, skips_special_tokens=False))
    assert not chat_params(state(), body(), marked).skip_special_tokens
    assert chat_params(state(), body(), TURN).skip_special_tokens
    assert chat_params(state(), body(), PLAIN_TURN).skip_special_tokens


def test_what_makes_the_outputs_ends_with_the_events() -> None:
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield outputs(["a"])[0]
        finally:
            closed.append(True)

    async def run() -> None:
        events = write_events(message_writer(), [endless()])
        await anext(events)
        await events.aclose()
        assert closed == [True]

    asyncio.run(run())
