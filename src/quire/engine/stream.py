"""Where an engine's outputs wait for the coroutine that asked for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from quire.core.embedding import PoolingRequestOutput
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import OutputKind

StreamItem = RequestOutput | PoolingRequestOutput | Exception

MAX_UNREAD = 256
"""Outputs that wait one by one. What comes on top of them is joined to the last, so that a slow reader costs little."""


class Stream:
    """Of one request; made on the event loop that will read it. One reader."""

    def __init__(self, output_kind: OutputKind = OutputKind.FINAL_ONLY) -> None:
        self.loop = asyncio.get_running_loop()
        self._output_kind = output_kind
        self._items: deque[StreamItem] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: StreamItem) -> None:
        """On the stream's own loop."""
        if len(self._items) >= MAX_UNREAD and isinstance(item, RequestOutput):
            self._items[-1] = self._joined(self._items[-1], item)
        else:
            self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> RequestOutput | PoolingRequestOutput:
        while not self._items:
            self._reader = self.loop.create_future()
            await self._reader
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def _joined(self, earlier: StreamItem, later: RequestOutput) -> StreamItem:
        """Nobody has seen `earlier` yet: it is changed in place, so that each token is moved once."""
        if self._output_kind is not OutputKind.DELTA:
            return later
        if not isinstance(earlier, RequestOutput):
            return earlier
        by_index = {sample.index: sample for sample in earlier.outputs}
        for sample in later.outputs:
            if sample.index in by_index:
                _append(by_index[sample.index], sample)
            else:
                earlier.outputs.append(sample)
        earlier.finished = later.finished
        earlier.prompt_logprobs = later.prompt_logprobs
        earlier.metrics = later.metrics
        earlier.num_cached_tokens = later.num_cached_tokens
        return earlier


def _append(sample: CompletionOutput, delta: CompletionOutput) -> None:
    sample.text += delta.text
    sample.token_ids += delta.token_ids
    if sample.logprobs is not None:
        sample.logprobs += delta.logprobs or ()
    sample.cumulative_logprob = delta.cumulative_logprob
    sample.finish_reason, sample.stop_reason, sample.error = delta.finish_reason, delta.stop_reason, delta.error


def take_outputs(outputs: Iterable[object], streams: dict[str, Stream]) -> list[tuple[Stream, StreamItem]]:
    """Each output with its stream, for `hand_out`; those of finished requests leave `streams`."""
    items: list[tuple[Stream, StreamItem]] = []
    for output in outputs:
        if isinstance(output, RequestOutput | PoolingRequestOutput) and output.request_id in streams:
            items.append((streams[output.request_id], output))
            if output.finished:
                del streams[output.request_id]
    return items


def hand_out(items: Iterable[tuple[Stream, StreamItem]]) -> None:
    """From any thread, in order: each loop is woken once, however many of its streams get something."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, StreamItem]]] = {}
    for stream, item in items:
        by_loop.setdefault(stream.loop, []).append((stream, item))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:
            # The loop closed meanwhile: nobody is left to tell.
            continue


def _put_all(batch: list[tuple[Stream, StreamItem]]) -> None:
    for stream, item in batch:
        stream.put(item)
