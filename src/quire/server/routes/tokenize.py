"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field

from quire.engine.tokenizer import Tokenizer
from quire.server.chat_turn import take_turn
from quire.server.schemas.answers import DetokenizeAnswer, TokenizeAnswer
from quire.server.schemas.chat import TemplateFields
from quire.server.schemas.fields import Name, OneOf, RequestBody, TokenId
from quire.server.schemas.openapi import answers
from quire.server.serving import json_response, preparing, require_ready
from quire.server.state import ServerState
from quire.server.strict_json import json_router

router = json_router()


class TokenizeTextRequest(RequestBody):
    model: Name | None = None
    prompt: str
    add_special_tokens: bool | None = Field(None, description="True if null.")
    return_token_strs: bool | None = None


class TokenizeChatRequest(TemplateFields):
    model: Name | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestBody):
    model: Name | None = None
    tokens: list[TokenId]


def _kind(body: Any) -> str:
    return "chat" if isinstance(body, dict) and "messages" in body else "text"


TokenizeRequest = Annotated[
    TokenizeTextRequest | TokenizeChatRequest, OneOf("a prompt or messages", _kind, ("text", "chat"))
]


@router.post("/tokenize", responses=answers(TokenizeAnswer))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text or of a conversation, as a completion of it would begin."""
    state = await require_ready(request, body.model)
    tokenizer = state.llm.tokenizer
    with preparing(request):
        if isinstance(body, TokenizeChatRequest):
            ids = (await take_turn(state, body.conversation())).token_ids
        else:
            ids = await asyncio.to_thread(tokenizer.encode, body.prompt, body.add_special_tokens is not False)
        texts = await asyncio.to_thread(_texts, tokenizer, ids) if body.return_token_strs else None
    return json_response(TokenizeAnswer(len(ids), state.llm.info.max_model_len, ids, texts))


@router.post("/detokenize", responses=answers(DetokenizeAnswer))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special ones included; bytes that are no UTF-8 become U+FFFD."""
    state = await require_ready(request, body.model)
    with preparing(request):
        text = await asyncio.to_thread(_decode, state, body.tokens)
    return json_response(DetokenizeAnswer(text))


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.decode_token(token_id) for token_id in ids]


def _decode(state: ServerState, tokens: list[int]) -> str:
    ids = state.connection.inputs.check_token_ids(tokens, "tokens")
    return state.llm.tokenizer.decode(ids, skip_special_tokens=False)
