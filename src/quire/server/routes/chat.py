"""`POST /v1/chat/completions`: the next message of a conversation, with tools and reasoning read out of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import msgspec
from fastapi import APIRouter, Request, Response

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.server.chat_turn import ChatTurn, take_turn, truncated
from quire.server.chat_writer import ChatWriter
from quire.server.outputs import FINGERPRINT, collect, whole_output_kind
from quire.server.schemas.answers import ChatCompletion
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.openapi import answers
from quire.server.schemas.sampling import make_sampling_params, structure_named, wanted_structure
from quire.server.serving import (
    generate,
    json_response,
    origin_of,
    preparing,
    prompt_named,
    require_ready,
    unless_client_leaves,
)
from quire.server.sse import EventStream
from quire.server.state import ServerState
from quire.server.strict_json import StrictJSONRoute

router = APIRouter(route_class=StrictJSONRoute)


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, streams=True), response_class=Response)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    body.check()
    origin = origin_of(request, "chat", stream=bool(body.stream), user=body.user, request_id=body.request_id)
    conversation = body.conversation(parallel=body.parallel_tool_calls is not False)
    with preparing(request), prompt_named("messages", of_several=False):
        turn = await take_turn(state, conversation, must_fit=body.truncate_prompt_tokens is None)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    turn = replace(turn, token_ids=truncated(state, turn.token_ids, body.truncate_prompt_tokens, max_tokens))
    turn, structure, field = turn.structure(wanted_structure(body))
    params = _sampling_params(state, body, turn, max_tokens, structure)
    outputs = generate(state, origin, turn.prompt, params, body)
    writer = ChatWriter(state.llm.tokenizer, body, turn, _frame(state))
    with structure_named(field), prompt_named("messages", of_several=False):
        if body.stream:
            return await EventStream.begin(request, _events(writer, outputs), body.answer_headers)
        output = await unless_client_leaves(request.receive, collect(outputs))
    return json_response(writer.whole(output), body.answer_headers)


def _sampling_params(
    state: ServerState,
    body: ChatCompletionRequest,
    turn: ChatTurn,
    max_tokens: int | None,
    structure: StructuredOutputs | None,
) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError(
            "top_logprobs is set, but logprobs is not; set logprobs to true.", field="top_logprobs"
        )
    params = make_sampling_params(
        body,
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structured_outputs=structure,
        output_kind=whole_output_kind(state, body.stream),
    )
    if turn.shows_special_tokens:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return params


def _frame(state: ServerState) -> tuple[str, int, str, str]:
    """id, created, model and system_fingerprint of an answer."""
    return f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), state.model_name, FINGERPRINT


async def _events(writer: ChatWriter, outputs: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(outputs):
        async for output in outputs:
            chunk = writer.chunk(output)
            if chunk:
                yield chunk
    yield writer.end()
