"""`LLM`: the offline face. Give it prompts, get their continuations."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from numbers import Real
from typing import Any, Self, TypeVar, cast

import msgspec

from quire.config import OFFLINE_BATCHED_TOKENS, engine_config
from quire.core.embedding import (
    EmbeddingRequestOutput,
    PoolingParams,
    PoolingRequestOutput,
    PoolingTask,
    ScoringRequestOutput,
)
from quire.core.engine_info import EngineInfo
from quire.core.outputs import BeamSearchOutput, RequestOutput
from quire.core.sampling_params import BeamSearchParams, OutputKind, SamplingParams
from quire.core.wire import AnyRequest
from quire.engine.chat_template import chat_prompt
from quire.engine.embedding_outputs import check_pairs, embedding_output, score_outputs
from quire.engine.input_processor import Prompt
from quire.engine.launch import launch
from quire.engine.progress import Progress
from quire.engine.request_fields import check_kind
from quire.engine.requests_in_progress import Output
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError
from quire.host.interrupts import DeferredInterrupt

Messages = Sequence[Mapping[str, Any]]
Finished = TypeVar("Finished", RequestOutput, PoolingRequestOutput)
Params = TypeVar("Params", SamplingParams, PoolingParams, int)


class LLM:
    """A model ready to generate, in this process. Threads take turns; `AsyncLLM` is for many requests at once.

    Keyword arguments are the fields of `EngineConfig`; of `max_num_batched_tokens` the default is larger. Raises
    InvalidRequestError, ModelNotFoundError, DownloadError, CheckpointError, UnsupportedModelError or OutOfMemoryError
    (all of them are QuireErrors, see `quire.errors`), each naming what to change.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        *,
        max_num_batched_tokens: int = OFFLINE_BATCHED_TOKENS,
        **config: Any,
    ) -> None:
        self._engine = launch(engine_config(model=model, max_num_batched_tokens=max_num_batched_tokens, **config))
        self._turn = threading.RLock()
        """Threads that call at the same time take turns: the engine is one thread's."""

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
        params_list = _for_each(sampling_params, SamplingParams(), len(prompt_list), "sampling_params")
        priorities = _for_each(priority, 0, len(prompt_list), "priority")
        requests: list[AnyRequest] = []
        for prompt, params, prompt_priority in zip(prompt_list, params_list, priorities, strict=True):
            with _named(len(requests), len(prompt_list)):
                requests.append(
                    self._engine.inputs.process(
                        prompt, _final_only(params), priority=prompt_priority, cache_salt=cache_salt
                    )
                )
        return self._run(requests, RequestOutput, use_tqdm)

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
        self._engine.inputs.check_task("generate")
        prompts: list[Prompt] = [
            chat_prompt(
                self.get_tokenizer(),
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _as_conversations(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, cache_salt=cache_salt)

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The `beam_width` best hypotheses of each prompt, best first; an output with `error` set has none."""
        check_kind(params, BeamSearchParams, "params")
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

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_task: PoolingTask | None = None,
    ) -> list[PoolingRequestOutput]:
        """The vectors of one text or many, in their order; an output with `error` set has none.

        All texts are checked before any is computed: a bad one raises InvalidRequestError.
        """
        prompt_list = _as_list(prompts)
        params_list = _for_each(pooling_params, PoolingParams(), len(prompt_list), "pooling_params")
        if pooling_task is not None:
            params_list = [msgspec.structs.replace(params, task=pooling_task) for params in params_list]
        requests = [
            self._engine.inputs.process_embedding(prompt, params)
            for prompt, params in zip(prompt_list, params_list, strict=True)
        ]
        return self._run(requests, PoolingRequestOutput, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One embedding a text. Raises GenerationFailedError if a text has none (values that are not finite)."""
        outputs = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="embed")
        return [embedding_output(output) for output in outputs]

    def score(
        self,
        a: Prompt | Sequence[Prompt],
        b: Prompt | Sequence[Prompt],
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """How alike texts are, as the cosine of their embeddings: one against one or many, or pair by pair."""
        first, second = _as_list(a), _as_list(b)
        check_pairs(len(first), len(second))
        params = PoolingParams(normalize=True, truncate_prompt_tokens=truncate_prompt_tokens)
        outputs = self.encode([*first, *second], params, use_tqdm=use_tqdm)
        return score_outputs(outputs[: len(first)], outputs[len(first) :])

    @property
    def info(self) -> EngineInfo:
        """What the engine loaded and what it holds."""
        return self._engine.info

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing is forgotten, while a sequence runs."""
        with self._turn:
            return self._engine.client.engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Free the model; idempotent."""
        with self._turn:
            self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _run(
        self, requests: Sequence[AnyRequest], kind: type[Finished], use_tqdm: bool | Callable[..., Any]
    ) -> list[Finished]:
        """The last output of each request, all of one kind."""
        finished: dict[str, Finished] = {}
        with closing(self._outputs(requests)) as outputs, closing(Progress(len(requests), use_tqdm)) as progress:
            for output in outputs:
                if isinstance(output, kind) and output.finished:
                    finished[output.request_id] = output
                    progress.finished(output)
        return [finished[request.request_id] for request in requests]

    def _outputs(self, requests: Sequence[AnyRequest]) -> Generator[Output, None, None]:
        """Everything the requests produce. However it ends (an error, Ctrl-C, a caller who leaves), nothing stays."""
        client = self._engine.client
        with self._turn, DeferredInterrupt() as interrupt:
            try:
                for request in requests:
                    client.add_request(request)
                while client.has_unfinished:
                    yield from client.step()
                    interrupt.raise_pending()
            finally:
                for request in requests:
                    client.abort(request.request_id)


def _as_conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One conversation is a list of message dicts, many are a list of such lists. What is no list is one, which its rendering refuses."""
    if isinstance(messages, Sequence) and messages and not isinstance(messages[0], Mapping):
        return list(cast(Sequence[Messages], messages))
    return [cast(Messages, messages)]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a string, a dict and a list of ints are one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or (len(prompts) > 0 and isinstance(prompts[0], Real)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _for_each(params: Params | Sequence[Params] | None, default: Params, num_prompts: int, field: str) -> list[Params]:
    if params is None:
        return [default] * num_prompts
    for given in params if isinstance(params, Sequence) else [params]:
        check_kind(given, type(default), field)
    if not isinstance(params, Sequence):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequestError(
            f"There are {len(params)} {field} for {num_prompts} prompts; give one, or one each.", field=field
        )
    return list(params)


@contextmanager
def _named(index: int, num_prompts: int) -> Iterator[None]:
    """A refusal of one prompt of several says which one it is."""
    try:
        yield
    except InvalidRequestError as error:
        if error.field != "prompt" or num_prompts == 1:
            raise
        raise type(error)(f"prompts[{index}]: {error}", field=error.field, value=error.value) from error


def _final_only(params: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(params, output_kind=OutputKind.FINAL_ONLY)
