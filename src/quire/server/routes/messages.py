"""`/v1/messages`: a chat in Anthropic's shape, and how many tokens its prompt has."""

from __future__ import annotations

from fastapi import Request, Response

from quire.server.answering import chat_params, respond
from quire.server.chat_turn import take_turn
from quire.server.message_writer import MessageWriter
from quire.server.schemas.message_answers import MessageAnswer, MessagesError, TokenCount
from quire.server.schemas.messages import CountTokensRequest, MessagesRequest
from quire.server.schemas.openapi import answers
from quire.server.serving import json_response, preparing, prompt_named, require_ready
from quire.server.strict_json import json_router

router = json_router()


@router.post("/v1/messages", responses=answers(MessageAnswer, streams=True, error=MessagesError))
async def create_message(body: MessagesRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    with preparing(request), prompt_named("messages"):
        turn = await take_turn(state, body.conversation(), must_fit=True)
    turn = turn.structured(body.wanted_structure())
    params = chat_params(state, body, turn, max_tokens=body.max_tokens, stop=body.stop_sequences or ())
    writer = MessageWriter(turn, state.model_name, body.max_tokens)
    return await respond(request, body, {"messages": turn.prompt}, params, writer, structure_field=turn.structure_field)


@router.post("/v1/messages/count_tokens", responses=answers(TokenCount, error=MessagesError))
async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
    """All tokens of the prompt, cached or not."""
    state = await require_ready(request, body.model)
    with preparing(request):
        turn = await take_turn(state, body.conversation())
    return json_response(TokenCount(len(turn.token_ids)))
