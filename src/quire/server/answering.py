"""How the chat APIs answer a turn: one run of the engine, written whole or as events in the API's shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.chat_turn import ChatTurn
from quire.server.errors import describe
from quire.server.outputs import collect, output_kind
from quire.server.schemas.sampling import GenerationFields, sampling_values, structure_named
from quire.server.serving import generate, json_response, origin_of, prompt_named, unless_client_leaves
from quire.server.sse import EventStream, event
from quire.server.state import ServerState, server_state


class AnswerWriter(ABC):
    """What an API makes of the outputs of one request."""

    @abstractmethod
    def answer(self, output: RequestOutput) -> msgspec.Struct:
        """The whole answer, of the only output."""

    @abstractmethod
    def write(self, output: RequestOutput) -> bytes:
        """The events that an output makes, if any."""

    def end(self) -> bytes:
        """What comes behind the events of the last output."""
        return b""

    def fail(self, error: Exception) -> bytes:
        """The last events of an answer that failed on the way."""
        return event(describe(error)[1])


def chat_params(state: ServerState, body: GenerationFields, turn: ChatTurn, **others: Any) -> SamplingParams:
    """`others`: what the body names otherwise than SamplingParams does. Raises InvalidRequestError."""
    values = sampling_values(body) | others
    if turn.shows_special_tokens:
        values["skip_special_tokens"] = False
    return SamplingParams(**values, structured_outputs=turn.structure, output_kind=output_kind(state, body.stream))


async def respond(
    request: Request,
    body: GenerationFields,
    turn: ChatTurn,
    params: SamplingParams,
    writer: AnswerWriter,
    *,
    prompt_field: str,
) -> Response:
    """Runs the turn and answers it, whole or in events. `prompt_field`: where the request has the conversation."""
    origin = origin_of(request, "chat", stream=bool(body.stream), user=body.tenant_user, request_id=body.request_id)
    outputs = generate(server_state(request), origin, turn.prompt, params, body)
    with structure_named(turn.structure_field), prompt_named(prompt_field):
        if body.stream:
            return await EventStream.begin(request, write_events(writer, outputs), body.answer_headers)
        output = await unless_client_leaves(request.receive, collect(outputs))
    return json_response(writer.answer(output), body.answer_headers)


async def write_events(
    writer: AnswerWriter, outputs: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[bytes, None]:
    """What fails before the first event is raised, what fails later is the last event."""
    has_begun = False
    try:
        async with aclosing(outputs):
            async for output in outputs:
                events = writer.write(output)
                has_begun = True
                if events:
                    yield events
        if ending := writer.end():
            yield ending
    except Exception as error:
        if not has_begun:
            raise
        yield writer.fail(error)
