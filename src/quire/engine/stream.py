"""Where an engine's outputs wait for the coroutine that asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quire.core.embedding import PoolingRequestOutput
from quire.core.outputs import RequestOutput
from quire.errors import RequestTimeoutError

MAX_UNREAD = 4096
"""Outputs; a step makes one of a request."""

StreamItem = RequestOutput | PoolingRequestOutput | Exception


class Stream:
    """Of one request; made on the event loop that will read it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[StreamItem] = asyncio.Queue()

    def put(self, item: StreamItem) -> None:
        """On the stream's own loop. A reader that is too far behind gets an error next, and nothing more."""
        num_unread = self._queue.qsize()
        if num_unread < MAX_UNREAD:
            self._queue.put_nowait(item)
        elif num_unread == MAX_UNREAD:
            message = f"The request's reader left {MAX_UNREAD} outputs unread; read faster."
            self._queue.put_nowait(RequestTimeoutError(message))

    async def get(self) -> RequestOutput | PoolingRequestOutput:
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item


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
