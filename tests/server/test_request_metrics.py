"""What requests leave behind in metrics, log and traces: through the real engine loop, on the null executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.held_engine import hold_after
from tests.server.records import status
from tests.server.test_metrics import Page

from quire.config import EngineConfig, ServerConfig
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.core.step import SampleError
from quire.engine.async_llm import AsyncLLM
from quire.engine.launch import launch
from quire.engine.local_engine import LocalEngine
from quire.engine.stats import collect_stats
from quire.errors import GenerationFailedError, InvalidRequestError, RequestTimeoutError
from quire.server.admission import Admission
from quire.server.metrics import REQUEST_HISTOGRAMS, Metrics
from quire.server.outputs import collect
from quire.server.request_record import RequestRecord
from quire.server.schemas.sampling import GenerationFields
from quire.server.serving import Origin, generate

PROMPT = {"prompt_token_ids": list(range(10, 40))}
ORIGIN = Origin("text_completion", "/v1/completions", "key-1", "key-1", "mine", None, None, True, time.monotonic())
BODY = GenerationFields()


class Records:
    """In a tracer's place."""

    def __init__(self) -> None:
        self.all: list[RequestRecord] = []

    def trace(self, record: RequestRecord) -> None:
        self.all.append(record)

    def shutdown(self) -> None: ...


def state_over(llm: Any, **config: Any) -> Any:
    return SimpleNamespace(
        config=ServerConfig(**config),
        model_name="tiny",
        llm=llm,
        admission=Admission(100, 100),
        metrics=Metrics("tiny"),
        tracer=Records(),
    )


@pytest.fixture
def state(tiny_llama: Path) -> Iterator[Any]:
    engine = launch(EngineConfig(model=str(tiny_llama), num_blocks=100, scheduling_policy="fair"), "null")
    llm = AsyncLLM.over(LocalEngine(engine))
    state = state_over(llm)
    state.metrics = Metrics("tiny", get_status=lambda: status(collect_stats(engine.client.engine)))
    yield state
    llm.shutdown()


def run(state: Any, leave_after: int | None = None, **params: Any) -> None:
    """One request; the client may leave after so many outputs."""

    async def ask() -> None:
        outputs = generate(state, ORIGIN, PROMPT, SamplingParams(ignore_eos=True, **params), BODY)
        async with aclosing(outputs):
            number = 0
            async for _ in outputs:
                number += 1
                if number == leave_after:
                    return

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.FINAL_ONLY])
@pytest.mark.parametrize("n", [1, 3])
def test_every_token_is_counted_once_however_it_is_handed_out(state: Any, kind: OutputKind, n: int) -> None:
    run(state, n=n, max_tokens=10, output_kind=kind)
    page = Page(state.metrics.render())
    assert page.value("quire:request_generation_tokens_sum") == 10 * n
    assert page.value("quire:request_max_num_generation_tokens_sum") == 10
    assert page.value("quire:generation_tokens_total") == 10 * n
    assert page.value("quire:prompt_tokens_total") == 30
    assert page.value("quire:request_prompt_tokens_sum") == 30
    assert page.value("quire:time_to_first_token_seconds_count") == 1
    assert page.value("quire:inter_token_latency_seconds_count") == 9 * n, "gaps are within a sample"
    assert page.value("quire:request_success_total", finished_reason="length") == 1
    (record,) = state.tracer.all
    assert (record.n, record.origin, record.status) == (n, ORIGIN, 200)
    times = (ORIGIN.arrival_time, record.first_scheduled_time, record.first_token_time, record.last_token_time)
    assert list(times) == sorted(times)


def test_a_client_that_leaves_is_an_abort(state: Any) -> None:
    may_go_on = hold_after(state.llm._connection, 2)
    run(state, leave_after=1, max_tokens=400, output_kind=OutputKind.DELTA)
    may_go_on.set()
    page = Page(state.metrics.render())
    assert page.value("quire:request_success_total", finished_reason="abort") == 1
    assert page.value("quire:time_to_first_token_seconds_count") == 1
    assert state.tracer.all[0].status == 499


@pytest.mark.parametrize("limits", [{}, {"request_timeout": 1e6}, {"queue_timeout": 1e6}])
@pytest.mark.parametrize("num_turns", range(4))
def test_a_client_that_leaves_as_an_output_comes_is_noticed(limits: dict[str, float], num_turns: int) -> None:
    """`num_turns` of the loop lie between the two: in one of them the output is there and has not been read."""
    state = state_over(SimpleNamespace(), **limits)

    async def leave() -> None:
        has_come = asyncio.Event()

        async def outputs(*_: Any, **__: Any) -> AsyncGenerator[RequestOutput, None]:
            while True:
                await has_come.wait()
                has_come.clear()
                yield RequestOutput("0", "p", [1], [], False)

        async def read() -> None:
            async for _ in generate(state, ORIGIN, PROMPT, SamplingParams(), BODY):
                pass

        state.llm.generate = outputs
        reading = asyncio.create_task(read())
        for _ in range(10):
            await asyncio.sleep(0)
        has_come.set()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        reading.cancel()
        done, _ = await asyncio.wait({reading}, timeout=60)
        assert done

    asyncio.run(leave())
    assert state.tracer.all[0].status == 499


def test_a_refused_request_is_no_success(state: Any) -> None:
    with pytest.raises(InvalidRequestError):
        run(state, min_tokens=100_000, max_tokens=100_000)
    page = Page(state.metrics.render())
    reasons = ("stop", "length", "abort", "error")
    assert sum(page.value("quire:request_success_total", finished_reason=reason) for reason in reasons) == 0
    assert [name for name, *_ in REQUEST_HISTOGRAMS if page.value(f"quire:{name}_count")] == []
    assert (state.tracer.all[0].status, state.tracer.all[0].error) == (400, "InvalidRequestError")


def test_of_a_request_that_never_began_no_prompt_is_observed() -> None:
    async def outputs(*_: Any, **__: Any) -> AsyncGenerator[RequestOutput, None]:
        await asyncio.Event().wait()
        yield RequestOutput("0", "p", [1], [], True)

    state = state_over(SimpleNamespace(generate=outputs), queue_timeout=0.01)
    with pytest.raises(RequestTimeoutError):
        asyncio.run(collect(generate(state, ORIGIN, PROMPT, SamplingParams(), BODY)))
    page = Page(state.metrics.render())
    assert page.value("quire:request_success_total", finished_reason="error") == 1
    assert page.value("quire:request_prompt_tokens_count") == 0, "a prompt of no tokens was none"


@pytest.mark.parametrize(
    ("cause", "kind", "status", "finish_reason"),
    [
        ("not_finite", GenerationFailedError, 500, "error"),
        ("grammar", GenerationFailedError, 500, "error"),
        ("nothing_left", InvalidRequestError, 400, None),
    ],
)
@pytest.mark.parametrize("num_before", [0, 1])
def test_a_sample_that_fails_is_recorded_as_what_it_is_answered(
    cause: Any, kind: type[Exception], status: int, finish_reason: str | None, num_before: int
) -> None:
    error = SampleError(cause, "It failed at position 3.")

    async def outputs(*_: Any, **__: Any) -> AsyncGenerator[RequestOutput, None]:
        for _ in range(num_before):
            yield RequestOutput("0", "p", [1], [CompletionOutput(0, "a", [5])], False)
        yield RequestOutput("0", "p", [1], [CompletionOutput(0, "", [], finish_reason="error", error=error)], True)

    state = state_over(SimpleNamespace(generate=outputs))
    with pytest.raises(kind, match="at position 3"):
        asyncio.run(collect(generate(state, ORIGIN, PROMPT, SamplingParams(), BODY)))
    (record,) = state.tracer.all
    assert (record.status, record.error, record.finish_reason) == (status, kind.__name__, finish_reason)


def test_the_second_of_two_equal_prompts_is_a_prefix_hit(state: Any) -> None:
    for _ in range(2):
        run(state, max_tokens=2)
    page = Page(state.metrics.render())
    assert page.value("quire:prefix_cache_queries_total") == 60
    assert page.value("quire:prefix_cache_hits_total") == state.tracer.all[1].num_cached_tokens == 16
