"""Several streams of outputs as one, and a stream of outputs as one output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from quire.core.outputs import CompletionOutput, RequestOutput

Item = TypeVar("Item")


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
        first = errors.exceptions[0]
        raise first from first.__cause__
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
