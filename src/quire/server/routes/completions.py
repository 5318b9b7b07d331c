"""`POST /v1/completions`: texts or token ids, continued."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from quire.core.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.input_processor import Prompt
from quire.server.chat_turn import truncated
from quire.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from quire.server.outputs import FINGERPRINT, collect, gather_all, make_usage, merge, whole_output_kind
from quire.server.schemas.answers import Completion, CompletionChoice, Usage
from quire.server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from quire.server.schemas.openapi import answers
from quire.server.schemas.sampling import make_sampling_params, structure_named, wanted_structure
from quire.server.serving import check_model, generate, json_response, origin_of, require_ready, unless_client_leaves
from quire.server.sse import DONE, EventStream, event
from quire.server.state import ServerState
from quire.server.strict_json import StrictJSONRoute

router = APIRouter(route_class=StrictJSONRoute)


@router.post("/v1/completions", responses=answers(Completion, streams=True), response_class=Response)
async def completions(body: CompletionRequest, request: Request) -> Response:
    state = await require_ready(request)
    check_model(state, body.model)
    body.check()
    origin = origin_of(request, "text_completion", stream=bool(body.stream), user=body.user, request_id=body.request_id)
    structure = wanted_structure(body)
    params = _sampling_params(state, body, structure)
    sources = [
        generate(state, origin, prompt, params, priority=body.priority or 0, cache_salt=body.cache_salt)
        for prompt in await _prompts(state, body)
    ]
    writer = CompletionWriter(state, body, params)
    headers = {} if body.request_id is None else {"X-Request-Id": body.request_id}
    with structure_named(structure[1] if structure else None):
        if body.stream:
            return await EventStream.begin(request, _events(writer, sources), headers)
        outputs = await unless_client_leaves(request, gather_all([collect(source) for source in sources]))
    whole = writer.whole(outputs) if params.prompt_logprobs is None else await asyncio.to_thread(writer.whole, outputs)
    return json_response(whole, headers)


def _sampling_params(
    state: ServerState, body: CompletionRequest, structure: tuple[StructuredOutputs, str] | None
) -> SamplingParams:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = make_sampling_params(
        body,
        # Nothing to generate is one token that is not shown: the prompt's logprobs are wanted.
        max_tokens=max(1, max_tokens),
        logprobs=body.logprobs,
        structured_outputs=structure[0] if structure else None,
        output_kind=whole_output_kind(state, body.stream),
    )
    if body.echo and body.logprobs is not None:
        num_top = max(body.logprobs, body.prompt_logprobs or 0)
        params = msgspec.structs.replace(params, prompt_logprobs=num_top)
    return params


async def _prompts(state: ServerState, body: CompletionRequest) -> list[Prompt]:
    """As the engine takes them, tokenized here where the request says how."""
    state.connection.inputs.check_task("generate")
    if body.add_special_tokens is not False and body.truncate_prompt_tokens is None:
        return list(body.prompts)
    add_special_tokens = body.add_special_tokens is not False
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens

    def tokenize(prompt: str | list[int]) -> Prompt:
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            state.connection.inputs.check_could_fit(prompt)
        ids = prompt if isinstance(prompt, list) else state.llm.tokenizer.encode(prompt, add_special_tokens)
        kept = truncated(state, ids, body.truncate_prompt_tokens, max_tokens)
        return {"prompt_token_ids": kept} | ({"prompt": prompt} if isinstance(prompt, str) and kept is ids else {})

    return await asyncio.to_thread(lambda: [tokenize(prompt) for prompt in body.prompts])


async def _events(
    writer: CompletionWriter, sources: Sequence[AsyncGenerator[RequestOutput, None]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(merge(sources)) as outputs:
        async for number, output in outputs:
            yield writer.chunk(number, output)
    yield writer.end()


class CompletionWriter:
    """Writes the answer to one request, whole or in chunks."""

    def __init__(self, state: ServerState, body: CompletionRequest, params: SamplingParams) -> None:
        self._tokenizer = state.llm.tokenizer
        self._body = body
        self._params = params
        self._shows_output = body.max_tokens != 0
        self._frame = Completion(f"cmpl-{uuid.uuid4().hex}", int(time.time()), state.model_name, FINGERPRINT, [])
        options = body.stream_options
        self._counts_always = bool(options and options.continuous_usage_stats)
        self._counts_at_end = bool(options and options.include_usage)
        self._logprobs: dict[int, CompletionLogprobsWriter] = {}
        self._begun: set[int] = set()
        self._outputs: dict[int, RequestOutput] = {}
        self._num_tokens = 0

    def whole(self, outputs: Sequence[RequestOutput]) -> Completion:
        choices = [
            self._choice(number, output, sample) for number, output in enumerate(outputs) for sample in output.outputs
        ]
        for choice, output in zip(choices, (o for o in outputs for _ in o.outputs), strict=True):
            if self._body.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._body.prompt_logprobs)
        return msgspec.structs.replace(self._frame, choices=choices, usage=make_usage(outputs, self._num_tokens))

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """One event."""
        self._outputs[number] = output
        frame = self._frame
        frame.choices = [self._choice(number, output, sample) for sample in output.outputs]
        if self._counts_always:
            frame.usage = self._usage()
        elif self._counts_at_end:
            frame.usage = None
        return event(frame)

    def end(self) -> bytes:
        if not self._counts_at_end:
            return DONE
        return event(msgspec.structs.replace(self._frame, choices=[], usage=self._usage())) + DONE

    def _usage(self) -> Usage:
        return make_usage(list(self._outputs.values()), self._num_tokens)

    def _choice(self, number: int, output: RequestOutput, sample: CompletionOutput) -> CompletionChoice:
        index = number * self._params.n + sample.index
        text, token_ids = sample.text, sample.token_ids
        finish_reason, stop_reason = sample.finish_reason, sample.stop_reason
        logprobs: Sequence[LogprobsAtPosition | None] = sample.logprobs or [None] * len(token_ids)
        if not self._shows_output:
            text, token_ids, logprobs = "", [], []
            finish_reason, stop_reason = finish_reason and "length", None
        self._num_tokens += len(token_ids)
        choice = CompletionChoice(index, text, None, finish_reason, stop_reason)
        if self._body.return_token_ids:
            choice.token_ids = token_ids
        writer = self._logprobs_writer(index, output)
        if index not in self._begun:
            self._begun.add(index)
            if self._body.return_token_ids:
                choice.prompt_token_ids = output.prompt_token_ids
            if self._body.echo:
                shown = self._prompt_text(output)
                choice.text = shown + text
                if writer is not None:
                    writer.echo(output.prompt_logprobs or [None] * len(output.prompt_token_ids), shown)
        if writer is not None:
            choice.logprobs = writer.write(token_ids, logprobs)
        return choice

    def _logprobs_writer(self, index: int, output: RequestOutput) -> CompletionLogprobsWriter | None:
        if self._body.logprobs is None:
            return None
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobsWriter(
                self._tokenizer,
                self._body.logprobs,
                output.prompt_token_ids,
                skip_special_tokens=self._params.skip_special_tokens,
            )
        return self._logprobs[index]

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids, self._params.skip_special_tokens)
