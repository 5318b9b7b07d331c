"""Questions to an engine in another process, and who waits for the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable


class PendingCalls:
    """Of one event loop."""

    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self._call_ids = itertools.count()

    async def ask(self, send: Callable[[int], None], timeout_s: float) -> bool:
        """`send` asks under the id it is given. Raises TimeoutError, or the error of `fail`."""
        call_id = next(self._call_ids)
        answer = self._answers[call_id] = asyncio.get_running_loop().create_future()
        try:
            send(call_id)
            return await asyncio.wait_for(answer, timeout_s)
        finally:
            del self._answers[call_id]

    def answer(self, call_id: int, result: bool) -> None:
        answer = self._answers.get(call_id)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def fail(self, error: Exception) -> None:
        """No answer will come."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
