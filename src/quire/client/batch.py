"""Running a batch against a server: each line asked once, its record on disk before it counts as done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from quire.client.address import NOT_JSON, RemoteError, ServerAddress, shorten
from quire.client.batch_file import BatchLine, BatchOutput, is_answered, read_input, reason_of
from quire.errors import InvalidRequestError, in_words

RETRY_STATUS = (429, 503)
NUM_ATTEMPTS = 8
MAX_RETRY_WAIT_S = 30.0
Record = dict[str, Any]


@dataclass(slots=True)
class BatchCounts:
    """`earlier` were done by a run before, of which `earlier_answered` did not fail. `first_failure` is why a request of this run did."""

    earlier: int = 0
    earlier_answered: int = 0
    completed: int = 0
    failed: int = 0
    first_failure: str | None = None

    @property
    def total(self) -> int:
        return self.earlier + self.completed + self.failed

    @property
    def all_failed(self) -> bool:
        return self.total > 0 and self.completed == self.earlier_answered == 0


def count_requests(path: Path, done: set[str]) -> int:
    """Lines of the input. Raises InvalidRequestError if `done` has records of lines that it does not have."""
    ids = {line.record_id for line in read_input(path)}
    if strange := len(done - ids):
        raise InvalidRequestError(
            f"The output has {strange} records of requests that are not in this input: it belongs to another input,"
            " or the input was changed. Name another output.",
            field="output",
        )
    return len(ids)


class BatchRun:
    """`timeout_s` is for one request. Cancelling `run` leaves an output that another run takes up."""

    def __init__(
        self,
        source: Path,
        output: BatchOutput,
        address: ServerAddress,
        *,
        max_concurrency: int,
        timeout_s: float,
        on_record: Callable[[], object] = lambda: None,
    ) -> None:
        self.counts = BatchCounts(len(output.done), output.num_answered)
        self._source = source
        self._output = output
        self._slots = asyncio.Semaphore(max_concurrency)
        self._on_record = on_record
        self._finished: asyncio.Queue[Record | None] = asyncio.Queue()
        self._http = httpx.AsyncClient(
            base_url=address.root,
            headers={**address.headers, "Content-Type": "application/json"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=max_concurrency),
            trust_env=False,
        )

    async def run(self) -> BatchCounts:
        """Raises RemoteError if the server goes away or stays busy: what it did not answer has no record, and is asked next time."""
        writer = asyncio.create_task(self._write())
        try:
            async with self._http, asyncio.TaskGroup() as group:
                for line in read_input(self._source):
                    if writer.done():  # it failed, and says why below
                        break
                    if line.record_id not in self._output.done:
                        await self._slots.acquire()
                        group.create_task(self._answer(line))
        except* RemoteError as errors:
            raise errors.exceptions[0] from None
        finally:
            # Whatever ended the run, answers that came are written.
            self._finished.put_nowait(None)
            await asyncio.shield(writer)
        return self.counts

    async def _answer(self, line: BatchLine) -> None:
        try:
            self._finished.put_nowait(await self._record(line))
        finally:
            self._slots.release()

    async def _record(self, line: BatchLine) -> Record:
        if line.problem is not None:
            return _error_record(line, "invalid_request", line.problem)
        try:
            answer = await self._ask(line)
        except httpx.TimeoutException:
            return _error_record(line, "timeout", f"no answer after {self._http.timeout.read:g} s")
        try:
            body = msgspec.json.decode(answer.content)
        except NOT_JSON:
            return _error_record(line, "bad_answer", f"the server answered {answer.status_code} and no JSON")
        request_id = answer.headers.get("x-request-id") or (body.get("id") if isinstance(body, dict) else None)
        response = {"status_code": answer.status_code, "request_id": request_id, "body": body}
        return {"id": line.record_id, "custom_id": line.custom_id, "response": response, "error": None}

    async def _ask(self, line: BatchLine) -> httpx.Response:
        """A busy server is asked again later, and one that is gone too, in case it comes back."""
        for attempt in range(NUM_ATTEMPTS):
            wait_s = min(0.1 * 2**attempt, MAX_RETRY_WAIT_S)
            last = attempt == NUM_ATTEMPTS - 1
            try:
                answer = await self._http.post(line.url, content=line.body)
            except httpx.TimeoutException:
                raise
            except httpx.TransportError as error:
                if last:
                    raise RemoteError(
                        f"The server is gone: {in_words(error)}; run again to take the batch up."
                    ) from error
            else:
                if answer.status_code not in RETRY_STATUS:
                    return answer
                if last:
                    raise RemoteError(
                        f"The server stays busy ({answer.status_code} {shorten(answer.text)}); run again to take the batch"
                        " up, with a smaller --max-concurrency."
                    )
                wait_s = max(wait_s, _retry_after_s(answer))
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _write(self) -> None:
        """All records that wait go out with one fsync, in a thread: a disk must not hold up the answers."""
        ended = False
        while not ended:
            records = [await self._finished.get()]
            while not self._finished.empty():
                records.append(self._finished.get_nowait())
            ended = None in records
            real = [record for record in records if record is not None]
            if real:
                await asyncio.to_thread(self._output.append, real)
            for record in real:
                self._count(record)

    def _count(self, record: Record) -> None:
        if is_answered(record):
            self.counts.completed += 1
        else:
            self.counts.failed += 1
            self.counts.first_failure = self.counts.first_failure or reason_of(record)
        self._on_record()


def _error_record(line: BatchLine, code: str, message: str) -> Record:
    error = {"code": code, "message": message}
    return {"id": line.record_id, "custom_id": line.custom_id, "response": None, "error": error}


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(max(0.0, float(answer.headers.get("retry-after", 0))), MAX_RETRY_WAIT_S)
    except ValueError:  # a date
        return 1.0
