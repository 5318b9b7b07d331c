"""How the APIs that generate text answer: prompts run through the engine, written whole or as events in the API's shape."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.input_processor import Prompt
from quire.server.chat_turn import ChatTurn
from quire.server.outputs import collect, gather_all, merge
from quire.server.request_record import Operation
from quire.server.schemas.sampling import GenerationFields, sampling_values, structure_named
from quire.server.serving import generate, json_response, origin_of, unless_client_leaves
from quire.server.sse import EventStream, error_event
from quire.server.state import ServerState, server_state


class AnswerWriter(ABC):
    """What an API makes of the outputs of one request."""

    @abstractmethod
    def answer(self, outputs: Sequence[RequestOutput]) -> msgspec.Struct:
        """The whole answer, of the only output of each prompt."""

    @abstractmethod
    def write(self, output: RequestOutput, number: int = 0) -> bytes:
        """The events that an output makes, if any. `number`: of its prompt."""

    def end(self) -> bytes:
        """What comes behind the events of the last output."""
        return b""

    def fail(self, error: Exception) -> bytes:
        """The last events of an answer that failed on the way."""
        return error_event(error)


def sampling_params(
    state: ServerState, body: GenerationFields, structure: StructuredOutputs | None, **others: Any
) -> SamplingParams:
    """`others`: what the body names otherwise than SamplingParams does. Raises InvalidRequestError."""
    # A queue time-out must see the first token come, also where only the whole is wanted.
    kind = OutputKind.DELTA if body.stream or state.config.queue_timeout is not None else OutputKind.FINAL_ONLY
    return SamplingParams(**sampling_values(body) | others, structured_outputs=structure, output_kind=kind)


def chat_params(state: ServerState, body: GenerationFields, turn: ChatTurn, **others: Any) -> SamplingParams:
    """As `sampling_params`."""
    if turn.shows_special_tokens:
        others["skip_special_tokens"] = False
    return sampling_params(state, body, turn.structure, **others)


async def respond(
    request: Request,
    body: GenerationFields,
    prompts: Mapping[str, Prompt],
    params: SamplingParams,
    writer: AnswerWriter,
    *,
    structure_field: str | None,
    operation: Operation = "chat",
) -> Response:
    """Runs the prompts, each under the name of the request's field that has it, and answers them, whole or in events.

    `structure_field`: where the request says what an answer must be like.
    """
    state = server_state(request)
    origin = origin_of(request, operation, stream=bool(body.stream), user=body.tenant_user, request_id=body.request_id)
    sources = [
        generate(state, origin, prompt, params, body, field=field, of_several=len(prompts) > 1)
        for field, prompt in prompts.items()
    ]
    with structure_named(structure_field):
        if body.stream:
            return await EventStream(write_events(writer, sources), body.answer_headers, writer.fail).begin(request)
        outputs = await unless_client_leaves(request.receive, gather_all([collect(source) for source in sources]))
    # The logprobs of a long prompt are so many that others would have to wait.
    on_thread = params.prompt_logprobs is not None
    answer = await asyncio.to_thread(writer.answer, outputs) if on_thread else writer.answer(outputs)
    return json_response(answer, body.answer_headers)


async def write_events(
    writer: AnswerWriter, sources: Sequence[AsyncGenerator[RequestOutput, None]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(merge(sources)) as outputs:
        async for number, output in outputs:
            if events := writer.write(output, number):
                yield events
    if ending := writer.end():
        yield ending
