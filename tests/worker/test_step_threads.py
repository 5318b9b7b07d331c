"""Where a worker computes: what is asked of it comes in order, an interrupt breaks nothing off, and its thread ends with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.inside import runner_of

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.core.outputs import RequestOutput
from quire.host.interrupts import DeferredInterrupt
from quire.kernels.native_module import thread_count
from quire.plan.machine import read_machine
from quire.worker.step_threads import CallersThread, OwnThread

needs_native = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
PROMPT = list(range(5, 42))
NUM_TOKENS = 40


def join_new(before: set[threading.Thread]) -> None:
    new = [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("quire-worker")
    ]
    for thread in new:
        thread.join(10)
    assert not any(thread.is_alive() for thread in new)


@pytest.fixture(autouse=True)
def before() -> Iterator[set[threading.Thread]]:
    threads = set(threading.enumerate())
    yield threads
    join_new(threads)


def test_its_own_thread_computes_before_it_is_asked_for_the_result() -> None:
    thread: OwnThread[int, int] = OwnThread()
    computed = threading.Event()

    def execute(plan: int) -> int:
        computed.set()
        return threading.get_ident()

    thread.submit(execute, 1)
    assert computed.wait(10)
    assert thread.collect() != threading.get_ident()
    thread.shutdown()


def test_the_callers_thread_computes_in_order_when_it_asks() -> None:
    thread: CallersThread[int, tuple[int, int]] = CallersThread()
    computed = []

    def execute(plan: int) -> tuple[int, int]:
        computed.append(plan)
        return plan, threading.get_ident()

    thread.submit(execute, 1)
    thread.submit(execute, 2)
    assert computed == []
    assert [thread.collect(), thread.collect()] == [(1, threading.get_ident()), (2, threading.get_ident())]


def test_what_was_begun_is_over_after_the_end() -> None:
    thread: OwnThread[int, None] = OwnThread()
    may_end, ended = threading.Event(), threading.Event()

    def step(_: int) -> None:
        may_end.wait(10)
        ended.set()

    thread.submit(step, 0)
    threading.Timer(0.05, may_end.set).start()
    thread.shutdown()
    assert ended.is_set()


def test_a_start_that_fails_leaves_no_thread(before: set[threading.Thread]) -> None:
    thread: OwnThread[int, None] = OwnThread()

    def fail() -> None:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        thread.run(fail)
    join_new(before)


@needs_native
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_an_interrupt_waits_for_the_end_of_the_step(
    tiny_llama: Path, enforce_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every other step two come, after the model and before the sampler: nothing is lost, nothing computed twice."""
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True)
    config: dict[str, Any] = {"backend": "cpu", "enforce_eager": enforce_eager, "max_num_batched_tokens": 16}
    with LLM(str(tiny_llama), **config) as llm:
        expected = llm.generate([PROMPT, PROMPT[3:]], params, use_tqdm=False)
        assert llm.reset_prefix_cache()
        runner = runner_of(llm)
        compute, num_calls = runner._compute, 0

        def interrupted(*args: Any) -> Any:
            nonlocal num_calls
            step = compute(*args)
            num_calls += 1
            if num_calls % 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return step

        monkeypatch.setattr(runner, "_compute", interrupted)
        outputs, num_interrupts = step_by_step(llm, params)
        assert tokens(outputs) == tokens(expected)
        assert num_interrupts == (num_calls + 1) // 2
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def step_by_step(llm: LLM, params: SamplingParams) -> tuple[list[RequestOutput], int]:
    """Goes on after each interrupt, and counts them."""
    num_interrupts = 0
    client = llm._engine.client
    requests = [llm._engine.inputs.process(prompt, params) for prompt in (PROMPT, PROMPT[3:])]
    for request in requests:
        client.add_request(request)
    last: dict[str, RequestOutput] = {}
    while client.has_unfinished:
        with DeferredInterrupt() as interrupt:
            outputs = client.step()
            try:
                interrupt.raise_pending()
            except KeyboardInterrupt:
                num_interrupts += 1
        last |= {output.request_id: output for output in outputs if isinstance(output, RequestOutput)}
    return [last[request.request_id] for request in requests], num_interrupts


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@needs_native
def test_whoever_asks_computes_with_the_workers_number_of_threads(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def generate() -> None:
        llm.generate([PROMPT], SamplingParams(max_tokens=3), use_tqdm=False)
        counts.append(thread_count())

    with ThreadPoolExecutor(1) as new_thread:
        count = new_thread.submit(thread_count).result() + 1
    machine = replace(read_machine(), num_cpus=count)
    monkeypatch.setattr("quire.engine.launch.read_machine", lambda: machine)
    with LLM(str(tiny_llama), backend="cpu", num_threads=count) as llm:
        asking = threading.Thread(target=generate)
        asking.start()
        asking.join()
    assert counts == [count]
