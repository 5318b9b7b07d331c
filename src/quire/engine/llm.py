"""`LLM`: the offline face. Give it prompts, get their continuations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from quire.config import EngineConfig
from quire.core.outputs import BeamSearchOutput, RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import BeamSearchParams, OutputKind, SamplingParams
from quire.engine.chat_template import render_chat
from quire.engine.engine_client import Output
from quire.engine.input_processor import Prompt
from quire.engine.launch import launch
from quire.engine.progress import Progress
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to generate, in this process.

    Keyword arguments are the fields of `EngineConfig`. Raises ModelNotFoundError, CheckpointError,
    UnsupportedModelError or OutOfMemoryError, each naming what to change.
    """

    def __init__(self, model: str = "smollm2", **config: Any) -> None:
        self._engine = launch(EngineConfig(model=model, **config))
        self.config = self._engine.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Continue one or many prompts; outputs come in the prompts' order.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`. All prompts are checked
        before any runs: a bad one raises InvalidRequestError and nothing is started.
        """
        prompt_list = _as_list(prompts)
        params_list = _for_each(sampling_params, SamplingParams(), len(prompt_list))
        priorities = [0] * len(prompt_list) if priority is None else list(priority)
        requests = [
            self._engine.inputs.process(prompt, _final_only(params), priority=prompt_priority, cache_salt=cache_salt)
            for prompt, params, prompt_priority in zip(prompt_list, params_list, priorities, strict=True)
        ]
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, through the model's own chat template.

        Raises ChatTemplateError if the template fails or the model has none.
        """
        conversations = _as_conversations(messages)
        tokenizer = self.get_tokenizer()
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = render_chat(
                tokenizer,
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            # The template wrote its own special tokens: adding more would double the BOS.
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": token_ids})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, cache_salt=cache_salt)

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The `beam_width` best hypotheses of each prompt, best first."""
        hop = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width, ignore_eos=True, detokenize=False
        )
        requests = [self._engine.inputs.process(prompt, hop, beam_search=params) for prompt in _as_list(prompts)]
        found: dict[str, BeamSearchOutput] = {}
        with closing(self._outputs(requests)) as outputs:
            for output in outputs:
                if isinstance(output, tuple):
                    found[output[0]] = output[1]
        return [found[request.request_id] for request in requests]

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks."""
        return self._engine.client.engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Free the model; idempotent."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(self, requests: list[Request], use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        with closing(self._outputs(requests)) as outputs, closing(Progress(len(requests), use_tqdm)) as progress:
            for output in outputs:
                if isinstance(output, RequestOutput) and output.finished:
                    finished[output.request_id] = output
                    progress.finished(output)
        return [finished[request.request_id] for request in requests]

    def _outputs(self, requests: list[Request]) -> Generator[Output, None, None]:
        """Everything the requests produce. However it ends (an error, Ctrl-C, a caller who leaves), nothing stays."""
        client = self._engine.client
        try:
            for request in requests:
                client.add_request(request)
            while client.has_unfinished:
                yield from client.step()
        finally:
            for request in requests:
                client.abort(request.request_id)


def _as_conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One conversation is a list of message dicts, many are a list of such lists."""
    first = messages[0] if messages else {}
    return [cast(Messages, messages)] if isinstance(first, Mapping) else list(cast(Sequence[Messages], messages))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a string, a dict and a list of ints are one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if len(prompts) > 0 and isinstance(prompts[0], int | float):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, default: SamplingParams, num_prompts: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or default] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequestError(
            f"There are {len(params)} sampling_params for {num_prompts} prompts; give one, or one each.",
            field="sampling_params",
        )
    return list(params)


def _final_only(params: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(params, output_kind=OutputKind.FINAL_ONLY)
