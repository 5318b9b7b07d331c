"""Sending a workload to a server at the times a traffic shape gives."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.bench.serve.result import LoadRun, ServedRequest, served_request
from quire.bench.workloads import BenchRequest
from quire.client.load_client import LoadClient
from quire.engine.tokenizer import Tokenizer

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
CHAT_MARGIN = 64
"""Tokens that a chat template may put around one message."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """How a workload's request becomes a body. `extra` overrides and adds fields."""

    endpoint: str
    model: str
    ignore_eos: bool
    extra: dict[str, Any]

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, request: BenchRequest, tokenizer: Tokenizer) -> bytes:
        """Completions get token ids, so that lengths are exact; a chat gets their text."""
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.num_output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            text = tokenizer.decode(request.prompt_token_ids)
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            fields["prompt"] = request.prompt_token_ids
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields | self.extra)


async def run_load(
    client: LoadClient,
    path: str,
    bodies: Sequence[bytes],
    num_input_tokens: Sequence[int],
    arrivals: Sequence[float],
    max_concurrency: int | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> LoadRun:
    """Send each body at its time, or as soon after as `max_concurrency` lets it, and wait for all."""
    slots = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    lags: list[float] = []
    cpu_start, start = time.process_time(), time.perf_counter()

    async def send(index: int) -> ServedRequest:
        lags.append(time.perf_counter() - start - arrivals[index])
        async with slots:
            answer = await client.stream(path, bodies[index])
        on_end()
        return served_request(answer, num_input_tokens[index], start)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for index, at in enumerate(arrivals):
            wait = start + at - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(group.create_task(send(index)))
    duration = time.perf_counter() - start
    return LoadRun(duration, [task.result() for task in tasks], time.process_time() - cpu_start, lags)
