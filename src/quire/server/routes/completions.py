"""`POST /v1/completions`: texts or token ids, continued."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response

from quire.engine.input_processor import Prompt
from quire.errors import InvalidRequestError
from quire.server.answering import respond, sampling_params
from quire.server.chat_turn import truncated
from quire.server.completion_writer import CompletionWriter
from quire.server.schemas.answers import Completion
from quire.server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.schemas.openapi import answers
from quire.server.serving import preparing, prompt_named, require_ready
from quire.server.state import ServerState
from quire.server.strict_json import json_router

router = json_router()


@router.post("/v1/completions", responses=answers(Completion, streams=True))
async def completions(body: CompletionRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    body.check()
    _check_number(state, body)
    structure, structure_field = body.wanted_structure() or (None, None)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    # Nothing to generate is one token that is not shown: the prompt's logprobs are wanted.
    others = {"max_tokens": max(1, max_tokens), "logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        others["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    params = sampling_params(state, body, structure, **others)
    with preparing(request):
        prompts = await _prompts(state, body, max_tokens)
    writer = CompletionWriter(state, body, params)
    return await respond(
        request, body, prompts, params, writer, structure_field=structure_field, operation="text_completion"
    )


async def _prompts(state: ServerState, body: CompletionRequest, max_tokens: int) -> dict[str, Prompt]:
    """As the engine takes them, by the request's fields; tokenized here where the request says how."""
    state.connection.inputs.check_task("generate")
    add_special_tokens = body.add_special_tokens is not False
    fields = ["prompt"] if len(body.prompts) == 1 else [f"prompt[{index}]" for index in range(len(body.prompts))]
    prompts: dict[str, Prompt] = dict(zip(fields, body.prompts, strict=True))
    if add_special_tokens and body.truncate_prompt_tokens is None:
        return prompts

    def tokenize(prompt: str | list[int]) -> Prompt:
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            state.connection.inputs.check_could_fit(prompt)
        ids = prompt if isinstance(prompt, list) else state.llm.tokenizer.encode(prompt, add_special_tokens)
        kept = truncated(state, ids, body.truncate_prompt_tokens, max_tokens)
        return {"prompt_token_ids": kept} | ({"prompt": prompt} if isinstance(prompt, str) and kept is ids else {})

    def tokenize_all() -> dict[str, Prompt]:
        for field, prompt in zip(fields, body.prompts, strict=True):
            with prompt_named(field, of_several=True):
                prompts[field] = tokenize(prompt)
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
