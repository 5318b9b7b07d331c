"""`AsyncLLM`: the streaming face. Each request is an async generator; the engine runs on a thread or in a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Self, TypeVar, cast

from quire.config import engine_config
from quire.core.embedding import PoolingParams, PoolingRequestOutput
from quire.core.engine_info import EngineInfo
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.chat_template import chat_prompt
from quire.engine.engine_connection import EngineConnection
from quire.engine.input_processor import Prompt
from quire.engine.launch import launch
from quire.engine.local_engine import LocalEngine
from quire.engine.request_fields import check_kind
from quire.engine.stream import Stream
from quire.engine.tokenizer import Tokenizer
from quire.errors import EngineDeadError

INLINE_PROMPT_LENGTH = 1024
"""Characters or tokens up to which a prompt is tokenized and checked on the event loop: some 50 us. A thread costs more."""

Result = TypeVar("Result")


class AsyncLLM:
    """A model ready to answer many requests at once, each an async generator of what it has so far.

    Keyword arguments are the fields of `EngineConfig`; errors on construction are those of `LLM`. Outputs are cumulative
    unless `SamplingParams.output_kind` says otherwise.
    """

    def __init__(self, model: str | os.PathLike[str] = "smollm2", **config: Any) -> None:
        self._connection: EngineConnection = LocalEngine(launch(engine_config(model=model, **config)))

    @classmethod
    def over(cls, connection: EngineConnection) -> Self:
        """The face of an engine that runs elsewhere."""
        llm = cls.__new__(cls)
        llm._connection = connection
        return llm

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream a request's outputs; leaving the generator early (break, cancel) aborts the request."""
        params = SamplingParams() if sampling_params is None else sampling_params
        check_kind(params, SamplingParams, "sampling_params")
        inputs = self._connection.inputs
        request = await _off_the_loop(
            _is_long(prompt) or _asks_much(params),
            lambda: inputs.process(
                prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt, tenant=tenant
            ),
            inputs.compiling if inputs.must_compile(params) else None,
        )
        stream = Stream(params.output_kind)
        self._connection.submit(request, stream)
        try:
            finished = False
            while not finished:
                output = cast(RequestOutput, await stream.get())
                finished = output.finished
                yield output
        finally:
            self._connection.drop(request.request_id, stream)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        **template: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a conversation, as `generate` does; other keyword arguments are those of `render_chat`."""
        prompt = await self.chat_prompt(messages, **template)
        answer = self.generate(
            prompt, sampling_params, request_id, priority=priority, cache_salt=cache_salt, tenant=tenant
        )
        async with aclosing(answer):
            async for output in answer:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> PoolingRequestOutput:
        """The vectors of one text; cancelling aborts the request."""
        params = PoolingParams() if pooling_params is None else pooling_params
        request = await _off_the_loop(
            _is_long(prompt),
            lambda: self._connection.inputs.process_embedding(
                prompt, params, request_id=request_id, priority=priority, tenant=tenant
            ),
        )
        stream = Stream()
        self._connection.submit(request, stream)
        try:
            return cast(PoolingRequestOutput, await stream.get())
        finally:
            self._connection.drop(request.request_id, stream)

    async def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> Prompt:
        """A conversation as a prompt; keyword arguments are those of `render_chat`. Runs off the event loop."""
        self._connection.inputs.check_task("generate")
        return await asyncio.to_thread(chat_prompt, self.tokenizer, messages, **template)

    async def abort(self, request_id: str) -> None:
        """End a request; its generator finishes with the reason abort."""
        self._connection.abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while sequences run."""
        return await self._connection.reset_prefix_cache()

    @property
    def info(self) -> EngineInfo:
        """What the engine loaded and what it holds."""
        return self._connection.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._connection.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self._connection.tokenizer

    @property
    def errored(self) -> bool:
        try:
            self._connection.check_alive()
        except EngineDeadError:
            return True
        return False

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine stopped or does not answer."""
        self._connection.check_alive()

    def shutdown(self) -> None:
        """Let go of the engine; pending requests end with EngineDeadError. Idempotent."""
        self._connection.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.shutdown)


def _is_long(prompt: Prompt) -> bool:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt_token_ids") or prompt.get("prompt") or ""
    return isinstance(prompt, Sequence) and len(prompt) > INLINE_PROMPT_LENGTH


def _asks_much(params: SamplingParams) -> bool:
    """Bad words too, however few: spelling them may wait for another request's."""
    return params.structured_outputs is not None or bool(params.bad_words)


async def _off_the_loop(
    is_long: bool, make: Callable[[], Result], executor: ThreadPoolExecutor | None = None
) -> Result:
    """Long work goes to a thread, so that other streams go on meanwhile; the loop's own threads where no other is given."""
    if not is_long:
        return make()
    return await asyncio.get_running_loop().run_in_executor(executor, make)
