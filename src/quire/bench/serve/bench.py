"""`quire bench serve`: a workload, a traffic shape, a server, and what came of it; or that for each rate of a sweep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tqdm import tqdm

from quire.bench.serve.comparison import Comparison, compare, counts_of, read_server
from quire.bench.serve.datasets import DatasetChoice, ServeWorkload, fit_to_context, make_workload
from quire.bench.serve.load import CHAT_MARGIN, RequestForm, run_load
from quire.bench.serve.result import Objectives, ServeResult
from quire.bench.serve.traffic import Traffic
from quire.bench.times import METRICS, RequestTimes
from quire.checkpoint.checkpoint import open_checkpoint
from quire.client.address import RemoteError, ServerAddress
from quire.client.discovery import find_model
from quire.client.load_client import LoadClient
from quire.client.server_metrics import Change, MetricsReading
from quire.engine.tokenizer import Tokenizer
from quire.errors import QuireError

WARMUP_TOKENS = 4
SETTLE_S, SETTLE_LIMIT_S = 0.5, 10.0
"""A server counts the last request after its client was told of the end: its counts have settled where this long nothing came, or, of
the run, as soon as they are the client's; after the limit they are taken as they are."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`model` None is the server's first; `tokenizer` None is the model's own. A run for each of `traffics`."""

    address: ServerAddress
    dataset: DatasetChoice = DatasetChoice()
    traffics: Sequence[Traffic] = (Traffic(),)
    endpoint: str = "completions"
    model: str | None = None
    tokenizer: str | None = None
    ignore_eos: bool = True
    extra_body: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600
    max_concurrency: int | None = None
    objectives: Objectives | None = None
    metrics: Sequence[str] = tuple(METRICS)
    percentiles: Sequence[float] = (50, 90, 99)
    check_metrics: bool = False


class ServeBench:
    """Raises RemoteError, on construction or when it runs, if the server does not serve what is asked."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._model = find_model(options.address, options.model)
        self._tokenizer = _open_tokenizer(options.tokenizer or self._model.name)
        self._form = RequestForm(options.endpoint, self._model.name, options.ignore_eos, options.extra_body)

    def title(self, results: Sequence[ServeResult]) -> str:
        dataset, num_prompts = self._options.dataset.name, _num_prompts(results)
        return f"{self._model.name} at {self._options.address.root}: {dataset}, {num_prompts} requests"

    async def run(self, *, show_progress: bool = False) -> list[ServeResult]:
        """Runs of a sweep have prompts of their own, or the prefix cache would answer the later ones."""
        results = []
        for number, traffic in enumerate(self._options.traffics):
            seed = self._options.dataset.seed + number
            results.append(await self._run_once(traffic, seed, show_progress))
        return results

    async def _run_once(self, traffic: Traffic, seed: int, show_progress: bool) -> ServeResult:
        options, workload = self._options, self._workload(seed)
        bodies = [self._form.body(request, self._tokenizer) for request in workload.requests]
        num_input = [len(request.prompt_token_ids) for request in workload.requests]
        arrivals = workload.arrivals or traffic.arrivals(len(bodies), seed)
        client = LoadClient(options.address, options.timeout_s)
        await self._warm_up(client, workload)
        before = await self._settled_metrics() if options.check_metrics else None
        with tqdm(total=len(bodies), disable=not show_progress, unit="req", leave=False) as bar:
            run = await run_load(
                client, self._form.path, bodies, num_input, arrivals, options.max_concurrency, bar.update
            )
        client.close()
        return ServeResult(
            run,
            traffic,
            options.max_concurrency,
            options.objectives,
            options.metrics,
            options.percentiles,
            of_trace=workload.arrivals is not None,
            num_cut=workload.num_cut,
            comparisons=() if before is None else await self._compare(before, run.requests),
        )

    async def _settled_metrics(self) -> MetricsReading:
        until, reading = time.monotonic() + SETTLE_LIMIT_S, read_server(self._options.address)
        while True:
            await asyncio.sleep(SETTLE_S)
            before, reading = reading, read_server(self._options.address)
            if counts_of(before) == counts_of(reading) or time.monotonic() > until:
                return reading

    async def _compare(self, before: MetricsReading, requests: Sequence[RequestTimes]) -> list[Comparison]:
        until = time.monotonic() + SETTLE_LIMIT_S
        while True:
            comparisons = compare(Change(before, read_server(self._options.address)), requests)
            differ = any(one.is_count and one.server is not None and one.difference for one in comparisons)
            if not differ or time.monotonic() > until:
                return comparisons
            await asyncio.sleep(SETTLE_S)

    def _workload(self, seed: int) -> ServeWorkload:
        workload = make_workload(replace(self._options.dataset, seed=seed), self._tokenizer)
        if self._model.max_model_len is None:
            return workload
        margin = CHAT_MARGIN if self._options.endpoint == "chat" else 0
        return fit_to_context(workload, self._model.max_model_len, margin)

    async def _warm_up(self, client: LoadClient, workload: ServeWorkload) -> None:
        """One short request that shares no prefix, so that a refusal is one clear error and not one a request."""
        first = workload.requests[0]
        short = replace(first, prompt_token_ids=first.prompt_token_ids[-1:], num_output_tokens=WARMUP_TOKENS)
        answer = await client.stream(self._form.path, self._form.body(short, self._tokenizer))
        if answer.error is not None:
            raise RemoteError(f"A first short request failed, so no others were sent: {answer.error}")

    def to_dict(self, results: Sequence[ServeResult], *, details: bool, sweep: bool) -> dict[str, Any]:
        """The figures of the run at the top level, or those of a sweep in a list."""
        options, dataset = self._options, self._options.dataset
        figures = [result.to_dict(details=details) for result in results]
        return {
            "benchmark": "serve",
            "model": self._model.name,
            "endpoint": options.endpoint,
            **({"sweep": figures} if sweep else figures[0]),
            "objectives_ms": options.objectives.limits_ms if options.objectives else None,
            "workload": {
                "dataset": dataset.name,
                "path": None if dataset.path is None else dataset.path.name,
                "num_prompts": _num_prompts(results),
                "input_len": str(dataset.input_len),
                "output_len": None if dataset.output_len is None else str(dataset.output_len),
                "time_scale": dataset.trace.time,
                "token_scale": dataset.trace.tokens,
                "seed": dataset.seed,
            },
        }


def _num_prompts(results: Sequence[ServeResult]) -> int:
    """Of each run: a trace may hold fewer requests than were asked for."""
    return len(results[0].run.requests)


def _open_tokenizer(name: str) -> Tokenizer:
    try:
        return Tokenizer(open_checkpoint(name, with_weights=False).tokenizer)
    except QuireError as error:
        raise QuireError(
            f"There is no tokenizer for {name}: {str(error).rstrip('.')}; name a model that has the same with --tokenizer."
        ) from error
