"""Vectors of texts: `/v1/embeddings`, and what they say of pairs: `/v1/score`, `/v1/rerank`, and the other addresses that
clients of other servers know these by."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import Request, Response
from msgspec import UNSET

from quire.config import ServerConfig
from quire.core.embedding import PoolingParams, PoolingRequestOutput
from quire.engine.embedding_outputs import check_pairs, score_outputs, vector_of
from quire.engine.input_processor import Prompt
from quire.errors import RequestTimeoutError
from quire.server.outputs import gather_all
from quire.server.request_record import Operation, Origin
from quire.server.schemas.embeddings import (
    DocumentText,
    EmbeddingData,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    ScoreAnswer,
    ScoreData,
    ScoreRequest,
    TextDocument,
    TextsRequest,
    TextsUsage,
)
from quire.server.schemas.fields import as_prompts
from quire.server.schemas.openapi import answers
from quire.server.serving import (
    json_response,
    origin_of,
    prompt_named,
    recorded,
    require_ready,
    time_left,
    unless_client_leaves,
)
from quire.server.state import ServerState
from quire.server.strict_json import json_router

router = json_router()

Encode = Callable[[Prompt], Coroutine[Any, Any, PoolingRequestOutput]]

MAX_TEXTS_IN_FLIGHT = 128
"""Of one request: enough to fill the engine's steps, few enough that others get their turn."""


@router.post("/v1/embeddings", responses=answers(EmbeddingsAnswer))
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """One vector a text, in the texts' order."""
    params = PoolingParams(
        normalize=body.normalize,
        dimensions=body.dimensions,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    texts = as_prompts(body.input)
    state, outputs = await _encode(request, "embeddings", body, [("input", texts)], params)
    as_base64 = body.encoding_format == "base64"
    data = [
        EmbeddingData(index, _base64(output) if as_base64 else vector_of(output).tolist())
        for index, output in enumerate(outputs)
    ]
    return json_response(EmbeddingsAnswer(*_frame("embd", state, outputs), data=data))


@router.post("/score", include_in_schema=False)
@router.post("/v1/score", responses=answers(ScoreAnswer))
async def score(body: ScoreRequest, request: Request) -> Response:
    """How alike texts are: the cosine of their vectors, -1 to 1."""
    first, second = as_prompts(body.text_1), as_prompts(body.text_2)
    check_pairs(len(first), len(second))
    params = PoolingParams(normalize=True, truncate_prompt_tokens=body.truncate_prompt_tokens)
    state, outputs = await _encode(request, "score", body, [("text_1", first), ("text_2", second)], params)
    scores = score_outputs(outputs[: len(first)], outputs[len(first) :])
    data = [ScoreData(index, output.outputs.score) for index, output in enumerate(scores)]
    return json_response(ScoreAnswer(*_frame("score", state, outputs), data=data))


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/v1/rerank", responses=answers(RerankAnswer))
async def rerank(body: RerankRequest, request: Request) -> Response:
    """The documents that are most like the query, by the cosine of their vectors."""
    documents = [item.text if isinstance(item, TextDocument) else item for item in body.documents]
    params = PoolingParams(normalize=True, truncate_prompt_tokens=body.truncate_prompt_tokens)
    state, outputs = await _encode(request, "score", body, [("query", [body.query]), ("documents", documents)], params)
    scores = [output.outputs.score for output in score_outputs(outputs[:1], outputs[1:])]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    shows = body.return_documents is not False
    results = [RerankResult(index, scores[index], DocumentText(documents[index]) if shows else UNSET) for index in best]
    return json_response(RerankAnswer(_new_id("rerank"), state.model_name, results, _usage(outputs)))


async def _encode(
    request: Request,
    operation: Operation,
    body: TextsRequest,
    fields: list[tuple[str, Sequence[Prompt]]],
    params: PoolingParams,
) -> tuple[ServerState, list[PoolingRequestOutput]]:
    """The vectors of all texts, field after field. One that is refused or fails ends the others."""
    state = await require_ready(request, body.model)
    origin = origin_of(request, operation, user=body.user)
    texts = [
        (f"{name}[{i}]" if len(group) > 1 else name, text) for name, group in fields for i, text in enumerate(group)
    ]
    encode = partial(state.llm.encode, pooling_params=params, priority=body.priority or 0, tenant=origin.tenant)
    return state, await unless_client_leaves(request.receive, _encode_recorded(state, origin, encode, texts))


async def _encode_recorded(
    state: ServerState, origin: Origin, encode: Encode, texts: list[tuple[str, Prompt]]
) -> list[PoolingRequestOutput]:
    """In the texts' order; `texts` are named by the field they came in."""
    with recorded(state, origin) as record:
        outputs = await _encode_in_time(state.config, origin.arrival_time, encode, texts)
        record.request_id = outputs[0].request_id
        record.finish_reason = "stop"
        record.num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        starts = [output.metrics.first_scheduled_time for output in outputs]
        record.first_scheduled_time = min((start for start in starts if start is not None), default=None)
        return outputs


async def _encode_in_time(
    config: ServerConfig, arrival_time: float, encode: Encode, texts: list[tuple[str, Prompt]]
) -> list[PoolingRequestOutput]:
    outputs: dict[int, PoolingRequestOutput] = {}
    unread = iter(enumerate(texts))
    left, what_is_late = time_left(config, arrival_time, has_begun=False)

    async def work() -> None:
        nonlocal what_is_late
        for index, (field, text) in unread:
            with prompt_named(field, of_several=True):
                output = await encode(text)
            vector_of(output)  # Raises if there is none, while the request's record is open.
            outputs[index] = output
            if len(outputs) == 1 and not timeout.expired():
                left, what_is_late = time_left(config, arrival_time, has_begun=True)
                timeout.reschedule(None if left is None else asyncio.get_running_loop().time() + left)

    try:
        async with asyncio.timeout(left) as timeout:
            await gather_all([work() for _ in range(min(MAX_TEXTS_IN_FLIGHT, len(texts)))])
    except TimeoutError as error:
        raise RequestTimeoutError(f"{what_is_late}; send fewer texts at once, or try again later.") from error
    return [outputs[index] for index in range(len(texts))]


def _base64(output: PoolingRequestOutput) -> str:
    return base64.b64encode(vector_of(output).astype("<f4", copy=False).tobytes()).decode()


def _usage(outputs: list[PoolingRequestOutput]) -> TextsUsage:
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return TextsUsage(num_tokens, num_tokens)


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _frame(prefix: str, state: ServerState, outputs: list[PoolingRequestOutput]) -> tuple[str, int, str, TextsUsage]:
    """id, created, model and usage."""
    return _new_id(prefix), int(time.time()), state.model_name, _usage(outputs)
