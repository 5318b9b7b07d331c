"""`POST /v1/chat/completions`: the next message of a conversation, with tools and reasoning read out of it."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request, Response

from quire.server.answering import chat_params, respond
from quire.server.chat_turn import take_turn, truncated
from quire.server.chat_writer import ChatWriter
from quire.server.schemas.answers import ChatCompletion
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.openapi import answers
from quire.server.serving import preparing, prompt_named, require_ready
from quire.server.strict_json import json_router

router = json_router()


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, streams=True))
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    body.check()
    conversation = body.conversation(parallel=body.parallel_tool_calls is not False)
    with preparing(request), prompt_named("messages"):
        turn = await take_turn(state, conversation, must_fit=body.truncate_prompt_tokens is None)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    turn = replace(turn, token_ids=truncated(state, turn.token_ids, body.truncate_prompt_tokens, max_tokens))
    turn = turn.structured(body.wanted_structure())
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = chat_params(state, body, turn, max_tokens=max_tokens, logprobs=logprobs)
    writer = ChatWriter(state, body, turn)
    return await respond(request, body, {"messages": turn.prompt}, params, writer, structure_field=turn.structure_field)
