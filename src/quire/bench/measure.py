"""Running a workload through the public API and timing it."""

from __future__ import annotations

import asyncio
import itertools
import time

from quire.bench.times import Measurement, RequestTimes
from quire.bench.workloads import BenchRequest
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.engine.async_llm import AsyncLLM
from quire.engine.llm import LLM


def measure_throughput(llm: LLM, workload: list[BenchRequest], *, show_progress: bool) -> Measurement:
    """All requests at once, nothing cached: how fast the whole batch is done."""
    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in workload]
    params = [_params(request, OutputKind.FINAL_ONLY) for request in workload]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=show_progress)
    duration = time.perf_counter() - start
    return Measurement(duration, [_times(output) for output in outputs])


async def measure_latency(llm: AsyncLLM, batch: list[BenchRequest]) -> Measurement:
    """A batch that starts together, streamed: how long a user waits for the first token, and between tokens."""
    await llm.reset_prefix_cache()
    start = time.perf_counter()
    requests = await asyncio.gather(*(_stream(llm, request) for request in batch))
    return Measurement(time.perf_counter() - start, list(requests))


async def _stream(llm: AsyncLLM, request: BenchRequest) -> RequestTimes:
    start = time.perf_counter()
    arrivals, num_tokens, failed = [], 0, False
    prompt = {"prompt_token_ids": request.prompt_token_ids}
    async for output in llm.generate(prompt, _params(request, OutputKind.DELTA)):
        arrivals.append(time.perf_counter())
        num_tokens += len(output.outputs[0].token_ids)
        failed = failed or output.outputs[0].finish_reason == "error"
    return RequestTimes(
        num_input_tokens=len(request.prompt_token_ids),
        num_output_tokens=num_tokens,
        ttft=arrivals[0] - start,
        e2el=arrivals[-1] - start,
        itl=[later - earlier for earlier, later in itertools.pairwise(arrivals)],
        failed=failed,
    )


def _times(output: RequestOutput) -> RequestTimes:
    metrics, completion = output.metrics, output.outputs[0]
    first = metrics.first_token_time or metrics.arrival_time
    last = metrics.last_token_time or first
    return RequestTimes(
        num_input_tokens=len(output.prompt_token_ids),
        num_output_tokens=len(completion.token_ids),
        ttft=first - metrics.arrival_time,
        e2el=last - metrics.arrival_time,
        failed=completion.finish_reason == "error",
    )


def _params(request: BenchRequest, output_kind: OutputKind) -> SamplingParams:
    """Greedy and of exactly the wanted length, so that every engine and every run does the same work."""
    return SamplingParams(
        temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True, output_kind=output_kind
    )
