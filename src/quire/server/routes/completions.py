"""`POST /v1/completions`: texts or token ids, continued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.input_processor import Prompt
from quire.errors import InvalidRequestError
from quire.server.chat_turn import truncated
from quire.server.completion_writer import CompletionWriter
from quire.server.outputs import collect, gather_all, merge, output_kind
from quire.server.schemas.answers import Completion
from quire.server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.schemas.openapi import answers
from quire.server.schemas.sampling import sampling_values, structure_named
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


@router.post("/v1/completions", responses=answers(Completion, streams=True), response_class=Response)
async def completions(body: CompletionRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    body.check()
    _check_number(state, body)
    origin = origin_of(request, "text_completion", stream=bool(body.stream), user=body.user, request_id=body.request_id)
    structure, structure_field = body.wanted_structure() or (None, None)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = _sampling_params(state, body, max_tokens, structure)
    with preparing(request):
        prompts = await _prompts(state, body, max_tokens)
    sources = [generate(state, origin, prompt, params, body) for prompt in prompts]
    if len(sources) > 1:
        sources = [_named(index, source) for index, source in enumerate(sources)]
    writer = CompletionWriter(state, body, params)
    with structure_named(structure_field):
        if body.stream:
            return await EventStream.begin(request, _events(writer, sources), body.answer_headers)
        outputs = await unless_client_leaves(request.receive, gather_all([collect(source) for source in sources]))
    whole = writer.whole(outputs) if params.prompt_logprobs is None else await asyncio.to_thread(writer.whole, outputs)
    return json_response(whole, body.answer_headers)


def _sampling_params(
    state: ServerState, body: CompletionRequest, max_tokens: int, structure: StructuredOutputs | None
) -> SamplingParams:
    params = SamplingParams(
        **sampling_values(body),
        # Nothing to generate is one token that is not shown: the prompt's logprobs are wanted.
        max_tokens=max(1, max_tokens),
        logprobs=body.logprobs,
        structured_outputs=structure,
        output_kind=output_kind(state, body.stream),
    )
    if body.echo and body.logprobs is not None:
        num_top = max(body.logprobs, body.prompt_logprobs or 0)
        params = msgspec.structs.replace(params, prompt_logprobs=num_top)
    return params


async def _prompts(state: ServerState, body: CompletionRequest, max_tokens: int) -> list[Prompt]:
    """As the engine takes them, tokenized here where the request says how."""
    state.connection.inputs.check_task("generate")
    add_special_tokens = body.add_special_tokens is not False
    if add_special_tokens and body.truncate_prompt_tokens is None:
        return list(body.prompts)

    def tokenize(prompt: str | list[int]) -> Prompt:
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            state.connection.inputs.check_could_fit(prompt)
        ids = prompt if isinstance(prompt, list) else state.llm.tokenizer.encode(prompt, add_special_tokens)
        kept = truncated(state, ids, body.truncate_prompt_tokens, max_tokens)
        return {"prompt_token_ids": kept} | ({"prompt": prompt} if isinstance(prompt, str) and kept is ids else {})

    def tokenize_all() -> list[Prompt]:
        prompts = []
        for index, prompt in enumerate(body.prompts):
            with prompt_named(_field(index) if len(body.prompts) > 1 else "prompt", of_several=True):
                prompts.append(tokenize(prompt))
        return prompts

    return await asyncio.to_thread(tokenize_all)


def _check_number(state: ServerState, body: CompletionRequest) -> None:
    """Each prompt is admitted by itself: more of them than a client may have unfinished would be told to come again for ever."""
    most = min(state.config.max_client_requests, state.config.max_queued_requests)
    if len(body.prompts) > most:
        raise InvalidRequestError(
            f"The request has {len(body.prompts)} prompts, but a client may have {most} unfinished at a time here"
            " (--max-client-requests, --max-queued-requests); send fewer.",
            field="prompt",
            value=len(body.prompts),
        )


def _field(index: int) -> str:
    return f"prompt[{index}]"


async def _named(index: int, source: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[RequestOutput, None]:
    async with aclosing(source):
        with prompt_named(_field(index), of_several=True):
            async for output in source:
                yield output


async def _events(
    writer: CompletionWriter, sources: Sequence[AsyncGenerator[RequestOutput, None]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(merge(sources)) as outputs:
        async for number, output in outputs:
            yield writer.chunk(number, output)
    yield writer.end()
