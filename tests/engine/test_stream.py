"""A stream hands out what was put, in order; to a slow reader in fewer, larger pieces."""

from __future__ import annotations

import asyncio
from threading import Thread

import numpy as np
import pytest

from quire.core.embedding import PoolingOutput, PoolingRequestOutput
from quire.core.outputs import BeamSearchOutput, CompletionOutput, Logprob, RequestMetrics, RequestOutput
from quire.core.sampling_params import OutputKind
from quire.core.step import SampleError
from quire.engine.stream import MAX_UNREAD, Stream, hand_out, take_outputs
from quire.errors import EngineDeadError

NUM_STEPS = 3 * MAX_UNREAD


def delta(step: int) -> RequestOutput:
    """Samples 0 and 1 take turns; at the end both finish."""
    last = step == NUM_STEPS - 1
    samples = [
        CompletionOutput(
            index,
            f"{step},",
            [step],
            cumulative_logprob=float(step),
            logprobs=[{step: Logprob(-1.0)}],
            finish_reason="stop" if last else None,
            stop_reason=7 if last else None,
        )
        for index in ((0, 1) if last else (step % 2,))
    ]
    return RequestOutput("r", None, [1], samples, finished=last)


def test_deltas_are_joined_and_none_is_lost() -> None:
    async def run() -> None:
        stream = Stream(OutputKind.DELTA)
        for step in range(NUM_STEPS):
            stream.put(delta(step))
        outputs = []
        while not outputs or not outputs[-1].finished:
            output = await stream.get()
            assert isinstance(output, RequestOutput)
            outputs.append(output)
        assert len(outputs) == MAX_UNREAD
        for index in (0, 1):
            steps = [step for step in range(NUM_STEPS) if step % 2 == index or step == NUM_STEPS - 1]
            samples = [sample for output in outputs for sample in output.outputs if sample.index == index]
            assert [token_id for sample in samples for token_id in sample.token_ids] == steps
            assert "".join(sample.text for sample in samples) == "".join(f"{step}," for step in steps)
            assert [token_id for sample in samples for at in sample.logprobs or () for token_id in at] == steps
            assert (samples[-1].finish_reason, samples[-1].stop_reason) == ("stop", 7)
            assert samples[-1].cumulative_logprob == NUM_STEPS - 1

    asyncio.run(run())


def test_of_whole_outputs_the_newest_counts() -> None:
    async def run() -> None:
        for stream in (Stream(OutputKind.CUMULATIVE), Stream(OutputKind.FINAL_ONLY), Stream()):
            for step in range(NUM_STEPS):
                stream.put(delta(step))
            outputs = [await stream.get() for _ in range(MAX_UNREAD)]
            assert outputs[-1] == delta(NUM_STEPS - 1)

    asyncio.run(run())


def test_an_error_comes_after_what_came_before_it() -> None:
    async def run() -> None:
        stream = Stream(OutputKind.DELTA)
        for step in range(MAX_UNREAD + 10):
            stream.put(delta(step))
        stream.put(EngineDeadError("gone"))
        stream.put(delta(0))
        for _ in range(MAX_UNREAD):
            await stream.get()
        with pytest.raises(EngineDeadError, match="gone"):
            await stream.get()

    asyncio.run(run())


def test_a_reader_that_waits_is_woken() -> None:
    async def run() -> None:
        stream = Stream(OutputKind.DELTA)
        reader = asyncio.create_task(stream.get())
        await asyncio.sleep(0)
        stream.put(delta(0))
        stream.put(delta(1))
        assert await reader == delta(0)
        assert await stream.get() == delta(1)

    asyncio.run(run())


def test_what_is_joined_has_all_that_the_last_has() -> None:
    async def run() -> None:
        stream = Stream(OutputKind.DELTA)
        for _ in range(MAX_UNREAD):
            stream.put(RequestOutput("r", None, [1], [CompletionOutput(0, "a", [5])], False))
        error = SampleError("not_finite", "No.")
        last = RequestOutput(
            *("r", None, [1], [CompletionOutput(0, "", [], finish_reason="error", error=error)], True),
            prompt_logprobs=[None],
            metrics=RequestMetrics(finished_time=3.0),
            num_cached_tokens=16,
        )
        stream.put(last)
        outputs = [await stream.get() for _ in range(MAX_UNREAD)]
        joined = CompletionOutput(0, "a", [5], finish_reason="error", error=error)
        assert outputs[-1] == RequestOutput(
            *("r", None, [1], [joined], True),
            prompt_logprobs=last.prompt_logprobs,
            metrics=last.metrics,
            num_cached_tokens=16,
        )

    asyncio.run(run())


def test_a_delta_without_logprobs_leaves_those_before_it() -> None:
    async def run() -> None:
        stream = Stream(OutputKind.DELTA)
        for _ in range(MAX_UNREAD):
            stream.put(delta(0))
        stream.put(RequestOutput("r", None, [1], [CompletionOutput(0, "", [], finish_reason="abort")], True))
        for _ in range(MAX_UNREAD):
            output = await stream.get()
        assert isinstance(output, RequestOutput)
        assert output.outputs[0].logprobs == [{0: Logprob(-1.0)}]
        assert output.outputs[0].finish_reason == "abort"

    asyncio.run(run())


def test_outputs_go_to_their_streams_which_leave_with_the_last() -> None:
    async def run() -> None:
        streams = {name: Stream() for name in "ab"}
        a, b = streams["a"], streams["b"]
        pooled = PoolingRequestOutput("a", None, [1], PoolingOutput(np.zeros(1, np.float32)))
        part, last = (RequestOutput("b", None, [1], [], finished) for finished in (False, True))
        others = [("b", BeamSearchOutput([])), RequestOutput("c", None, [1], [], True)]
        assert take_outputs([*others, part], streams) == [(b, part)]
        assert take_outputs([pooled, pooled, part], streams) == [(a, pooled), (b, part)]
        assert take_outputs([last, last], streams) == [(b, last)]
        assert not streams

    asyncio.run(run())


def test_a_loop_that_has_closed_keeps_nothing_from_the_others() -> None:
    async def make() -> Stream:
        return Stream()

    async def run() -> None:
        gone, here, outputs = await asyncio.to_thread(asyncio.run, make()), Stream(), [delta(0), delta(1)]
        thread = Thread(target=hand_out, args=([(gone, outputs[0]), *((here, output) for output in outputs)],))
        thread.start()
        async with asyncio.timeout(30):
            assert [await here.get(), await here.get()] == outputs
        thread.join()

    asyncio.run(run())
