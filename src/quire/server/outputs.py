"""Several streams of outputs as one, a stream of outputs as one output, and what OpenAI's answers say of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from quire import __version__
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import OutputKind
from quire.server.schemas.answers import PromptTokensDetails, Usage
from quire.server.state import ServerState

FINGERPRINT = f"quire-{__version__}"

Item = TypeVar("Item")


def new_frame(state: ServerState, kind: str) -> tuple[str, int, str, str]:
    """id, created, model and system_fingerprint of an answer."""
    return f"{kind}-{uuid.uuid4().hex}", int(time.time()), state.model_name, FINGERPRINT


def output_kind(state: ServerState, stream: bool | None) -> OutputKind:
    """A queue time-out must see the first token come, also where only the whole is wanted."""
    return OutputKind.DELTA if stream or state.config.queue_timeout is not None else OutputKind.FINAL_ONLY


async def collect(outputs: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    """The whole output of which these are the deltas."""
    parts: dict[int, list[CompletionOutput]] = {}
    last: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            last = output
            for sample in output.outputs:
                parts.setdefault(sample.index, []).append(sample)
    assert last is not None, "the engine always sends an end"
    return replace(last, outputs=[_joined(parts[index]) for index in sorted(parts)])


def _joined(parts: list[CompletionOutput]) -> CompletionOutput:
    last = parts[-1]
    if len(parts) == 1:
        return last
    return replace(
        last,
        text="".join(part.text for part in parts),
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=None if last.logprobs is None else [entry for part in parts for entry in part.logprobs or ()],
    )


async def merge(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """The items of all as they come, each with the number of its source, once every source has given its first.

    So whatever is wrong with one of them shows before anything is handed out. All are closed at the end or first error.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    # A full queue holds the sources back, so that a slow reader does not fill memory.
    queue: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(len(sources))
    feeding: list[asyncio.Task[None]] = []
    try:
        for number, first in enumerate(await gather_all([_first(source) for source in sources])):
            yield number, first
        feeding = [asyncio.create_task(_feed(queue, number, source)) for number, source in enumerate(sources)]
        num_open = len(sources)
        while num_open:
            match await queue.get():
                case None:
                    num_open -= 1
                case Exception() as error:
                    raise error
                case numbered:
                    yield numbered
    finally:
        for task in feeding:
            task.cancel()
        await asyncio.gather(*feeding, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def gather_all(work: Sequence[Coroutine[None, None, Item]]) -> list[Item]:
    """The results in order. The first failure cancels the others, waits for them, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _first(source: AsyncGenerator[Item, None]) -> Item:
    return await anext(source)


async def _feed(
    queue: asyncio.Queue[tuple[int, Item] | Exception | None], number: int, source: AsyncGenerator[Item, None]
) -> None:
    try:
        async for item in source:
            await queue.put((number, item))
    except Exception as error:
        await queue.put(error)
    await queue.put(None)


def make_usage(outputs: Sequence[RequestOutput], num_completion_tokens: int) -> Usage:
    """One output of each prompt."""
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        completion_tokens=num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(sum(output.num_cached_tokens for output in outputs)),
    )
