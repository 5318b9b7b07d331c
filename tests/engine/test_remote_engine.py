"""An engine behind sockets gives what one in process gives. The engine process itself is tested in tests/server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.server.own_server import wait_for

from quire import AsyncLLM, SamplingParams
from quire.checkpoint.checkpoint import open_checkpoint
from quire.config import EngineConfig
from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import BeamSearchParams, OutputKind
from quire.core.sequence import FinishReason
from quire.core.stats import EngineStats
from quire.core.view import ViewUpdate
from quire.core.wire import (
    AbortRequest,
    AddRequest,
    CallAnswer,
    Delta,
    EngineStatus,
    FromEngine,
    Hello,
    RequestRefused,
    ResetPrefixCache,
    SampleDelta,
    StepOutputs,
    ToEngine,
    Watch,
    Welcome,
)
from quire.engine import remote_engine
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.engine_link import EngineLink, Received
from quire.engine.engine_process import EngineService
from quire.engine.frames import Frames
from quire.engine.heartbeat import Heartbeat
from quire.engine.input_processor import InputProcessor, Prompt
from quire.engine.launch import launch
from quire.engine.local_engine import LocalEngine
from quire.engine.remote_engine import SILENCE_LIMIT_S, ClientFiles, FinishFiles, RemoteEngine
from quire.engine.requests_in_progress import RequestsInProgress
from quire.engine.stream import Stream
from quire.errors import EngineDeadError, InvalidRequestError

PATIENCE_MS = 20_000

Body = Callable[[AsyncLLM, EngineService], Coroutine[Any, Any, None]]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **fields})


def run(model: Path, directory: Path, body: Body, executor: str = "null") -> None:
    """`body` with a face over sockets, the first of two clients; the service runs on a thread.

    Afterwards no block is held, no request is known, and no step seems to go on.
    """
    launched = launch(EngineConfig(model=str(model), num_blocks=100, num_threads=1, seed=1), executor)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    addresses = EngineAddresses(str(directory))
    heartbeat = Heartbeat(context, addresses.status)
    service = EngineService(launched.client.engine, context, addresses, 2, heartbeat)
    heartbeat.info = launched.info
    heartbeat.enter("ready")
    thread = threading.Thread(target=service.run)
    thread.start()
    engine_read, engine_end = os.pipe()

    async def main() -> None:
        connection = RemoteEngine(
            addresses, 0, engine_read, lambda: lambda info: ClientFiles(launched.tokenizer, launched.inputs)
        )
        try:
            async with asyncio.timeout(60):
                await connection.wait_ready()
                await body(AsyncLLM.over(connection), service)
        finally:
            await asyncio.to_thread(connection.shutdown)

    pool = launched.client.engine.scheduler.kv.pool
    try:
        asyncio.run(main())
        # What its client gave up last may still be on its way to the service.
        wait_for(lambda: pool.num_held == 0, "that no block is held", 30)
    finally:
        service.stopping = True
        thread.join()
        heartbeat.stop()
        context.destroy(linger=0)
        os.close(engine_end)
        os.close(engine_read)
    assert pool.num_held == 0
    assert not launched.client.engine.has_unfinished
    assert 0 not in service._owners.values()
    assert heartbeat.step_start_time is None


async def last(llm: AsyncLLM, prompt: Prompt, sampling: SamplingParams, **options: Any) -> RequestOutput:
    return [output async for output in llm.generate(prompt, sampling, **options)][-1]


def test_outputs_equal_those_of_an_engine_in_process(tiny_llama: Path, tmp_path: Path) -> None:
    prompts = [f"prompt number {i}" for i in range(20)]

    async def remote(llm: AsyncLLM, service: EngineService) -> None:
        found = await asyncio.gather(*(last(llm, prompt, params(seed=i)) for i, prompt in enumerate(prompts)))
        local = AsyncLLM.over(LocalEngine(launch(EngineConfig(model=str(tiny_llama), num_blocks=100, seed=1), "null")))
        async with local:
            expected = await asyncio.gather(*(last(local, p, params(seed=i)) for i, p in enumerate(prompts)))
        for one, other in zip(found, expected, strict=True):
            assert one.outputs == other.outputs
            assert one.prompt_token_ids == other.prompt_token_ids

    run(tiny_llama, tmp_path, remote)


def test_a_stop_string_found_here_ends_the_sample_there(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        sampling = {"temperature": 1.0, "seed": 5}
        whole = (await last(llm, "abc", params(max_tokens=60, **sampling))).outputs[0].text
        stop = whole[10:13]
        num_steps = service._engine.steps.num_steps

        def stay_unfinished() -> None:
            """Behind the stop string no step ends before a message came."""
            if service._engine.steps.num_steps >= num_steps + 30:
                service._requests.poll(PATIENCE_MS)

        service._engine.view.while_computing = stay_unfinished
        output = (await last(llm, "abc", params(max_tokens=400, stop=[stop], **sampling))).outputs[0]
        assert output.finish_reason == "stop"
        assert output.text == whole[: whole.index(stop)]
        while service._engine.has_unfinished:
            await asyncio.sleep(0.01)
        assert service._engine.steps.num_steps < num_steps + 60, "it was computed to its end"
        assert not service._owners

    run(tiny_llama, tmp_path, body, "uniproc")


def test_leaving_a_stream_frees_its_blocks(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        def stay_unfinished() -> None:
            """No further step ends before a message came."""
            if service._engine.steps.num_steps >= 2:
                service._requests.poll(PATIENCE_MS)

        service._engine.view.while_computing = stay_unfinished
        async for output in llm.generate("abc", params(max_tokens=400, output_kind=OutputKind.DELTA)):
            assert not output.finished
            break
        while service._engine.has_unfinished:
            await asyncio.sleep(0.01)
        assert service._engine.steps.num_steps < 20, "it was computed to its end"

    run(tiny_llama, tmp_path, body)


def test_an_aborted_request_ends_here_and_there(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        def stay_unfinished() -> None:
            """No further step ends before a message came."""
            if service._engine.steps.num_steps >= 2:
                service._requests.poll(PATIENCE_MS)

        service._engine.view.while_computing = stay_unfinished
        stream = llm.generate("abc", params(max_tokens=400, output_kind=OutputKind.DELTA), request_id="a")
        await anext(stream)
        await llm.abort("a")
        *_, end = [output async for output in stream]
        assert (end.finished, end.outputs[0].finish_reason) == (True, "abort")
        while service._engine.has_unfinished:
            await asyncio.sleep(0.01)
        assert service._engine.steps.num_steps < 20, "it was computed to its end"

    run(tiny_llama, tmp_path, body)


def test_who_leaves_when_its_request_has_ended_does_not_end_another_of_that_id(
    tiny_llama: Path, tmp_path: Path
) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        may_go_on = threading.Event()
        ended = llm.generate("abc", params(max_tokens=1), request_id="same")
        assert (await anext(ended)).finished
        service._engine.view.while_computing = lambda: may_go_on.wait(60)
        running = asyncio.create_task(last(llm, "abc", params(), request_id="same"))
        await asyncio.to_thread(wait_for, lambda: service._engine.has_unfinished, "its turn", 30)
        await ended.aclose()
        may_go_on.set()
        assert len((await running).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def test_what_a_client_gave_up_is_not_computed(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was taken for stopped goes on, and reads what was sent to it meanwhile."""

    async def body(llm: AsyncLLM, service: EngineService) -> None:
        engine, is_held, may_go_on = service._engine, threading.Event(), threading.Event()
        connection = llm._connection
        assert isinstance(connection, RemoteEngine)

        def hold() -> None:
            """When they may go on, no step ends before a message came."""
            is_held.set()
            assert may_go_on.wait(60)
            service._requests.poll(PATIENCE_MS)

        engine.view.while_computing = hold
        first = asyncio.create_task(last(llm, "abc", params(max_tokens=400)))
        await asyncio.to_thread(is_held.wait, 30)
        leaving = [asyncio.create_task(last(llm, "abc", params())) for _ in range(20)]
        waiting = asyncio.create_task(last(llm, "abc", params(max_tokens=400)))
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        monkeypatch.setattr(remote_engine, "FROZEN_AFTER_S", 0.0)
        for task in (first, waiting):
            with pytest.raises(EngineDeadError, match="was given up"):
                await task
        heard = connection.status
        await asyncio.to_thread(wait_for, lambda: connection.status is not heard, "the reader's next round", 30)
        may_go_on.set()
        while engine.has_unfinished:
            await asyncio.sleep(0.01)
        assert engine.steps.num_steps < 20, "it was computed to its end"

    run(tiny_llama, tmp_path, body)


def test_refusals_come_back_with_their_field(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        # As if it had less memory than its clients believe: they refuse what it would refuse.
        service._engine.scheduler._guarantees._num_blocks = 3  # type: ignore[union-attr]
        with pytest.raises(InvalidRequestError, match="KV blocks") as refused:
            await last(llm, [1], params(max_tokens=200))
        assert (refused.value.field, refused.value.value) == ("max_tokens", 200)
        assert len((await last(llm, "abc", params())).outputs[0].token_ids) == 12
        assert await llm.reset_prefix_cache()

    run(tiny_llama, tmp_path, body)


def test_nobody_waits_for_a_reader_that_failed(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def body(llm: AsyncLLM, service: EngineService) -> None:
        monkeypatch.setattr(RequestsInProgress, "digest", fail)
        with pytest.raises(EngineDeadError, match="could not be taken in"):
            await last(llm, "abc", params())
        assert llm.errored

    run(tiny_llama, tmp_path, body)


def test_a_second_request_of_the_same_id_is_refused_and_the_first_goes_on(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        computing, answered = threading.Event(), threading.Event()

        def slow_down() -> None:
            """Until the second client has its answer, no step ends before a message came."""
            computing.set()
            while not answered.is_set() and not service._requests.poll(10):
                continue

        service._engine.view.while_computing = slow_down
        running = asyncio.create_task(last(llm, "abc", params(max_tokens=300), request_id="same"))
        await asyncio.to_thread(computing.wait)
        try:
            message = await asyncio.to_thread(second_client_asks, tmp_path, llm.get_tokenizer().encode("abc"))
        finally:
            answered.set()
        assert isinstance(message, RequestRefused)
        assert (message.request_id, message.field) == ("same", "request_id")
        assert "'same' is already running" in message.message
        assert len((await running).outputs[0].token_ids) == 300
        assert len((await last(llm, "abc", params(), request_id="same")).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def second_client_asks(directory: Path, token_ids: list[int]) -> FromEngine:
    """Aborts a request named "same" and adds one; the first answer."""
    addresses = EngineAddresses(str(directory))
    request = Request(
        request_id="same", prompt_token_ids=token_ids, sampling_params=params(), max_num_tokens=20, arrival_time=0.0
    )
    with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as outputs:
        requests.connect(addresses.requests)
        outputs.connect(addresses.outputs(1))
        frames = Frames[ToEngine](ToEngine)
        # Sockets connect in their own time, and the engine drops what has nowhere to go.
        requests.send(frames.encode(Hello(1)))
        while not outputs.poll(200):
            requests.send(frames.encode(Hello(1)))
        outputs.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        for message in (AbortRequest(1, "same"), AddRequest(1, request)):
            requests.send(frames.encode(message))
        answer: FromEngine = Welcome()
        while isinstance(answer, Welcome):
            answer = Frames[FromEngine](FromEngine).decode(outputs.recv())
        return answer


def test_a_bad_frame_is_dropped_and_counted(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.connect(EngineAddresses(str(tmp_path)).requests)
        nobodys = map(Frames[ToEngine](ToEngine).encode, (Hello(2), Watch(-1, True), ResetPrefixCache(9, 0)))
        for frame in (b"", b"\x80\x04.", b"\x01\xc1", *nobodys):
            socket.send(frame)
        while service.num_bad_frames < 6:
            await asyncio.sleep(0.01)
        socket.close()
        context.term()
        assert len((await last(llm, "abc", params())).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


class FullOnce:
    """A client's socket that has no room for the first message of a kind, however long it is waited for."""

    def __init__(self, socket: zmq.Socket[bytes], kind: type[FromEngine]) -> None:
        self._socket = socket
        self._kind = kind
        self._full = True

    def send(self, frame: bytes, flags: int = 0) -> None:
        if self._full and isinstance(Frames[FromEngine](FromEngine).decode(frame), self._kind):
            self._full = False
            raise zmq.Again
        self._socket.send(frame, flags)

    def poll(self, timeout: int, flags: int) -> int:
        return 0 if timeout else self._socket.poll(timeout, flags)


@pytest.mark.parametrize("kind", [StepOutputs, RequestRefused])
def test_who_read_too_late_to_hear_of_its_end_hears_of_that(
    tiny_llama: Path, tmp_path: Path, kind: type[StepOutputs | RequestRefused]
) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        if kind is RequestRefused:
            service._owners["0"] = 1
        service._clients[0].socket = FullOnce(service._clients[0].socket, kind)  # type: ignore[assignment]
        with pytest.raises(EngineDeadError, match="too far ahead"):
            await last(llm, "abc", params(max_tokens=1), request_id="0")
        assert len((await last(llm, "abc", params(), request_id="1")).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def test_an_answer_there_was_no_room_for_comes_later(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        service._clients[0].socket = FullOnce(service._clients[0].socket, CallAnswer)  # type: ignore[assignment]
        assert await llm.reset_prefix_cache()
        assert await llm.reset_prefix_cache()
        assert not service._clients[0].owed

    run(tiny_llama, tmp_path, body)


class LateOnce(FullOnce):
    """It has room again while it is waited for."""

    def poll(self, timeout: int, flags: int) -> int:
        return self._socket.poll(timeout, flags)


def test_who_reads_a_little_late_misses_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        service._clients[0].socket = LateOnce(service._clients[0].socket, StepOutputs)  # type: ignore[assignment]
        assert len((await last(llm, "abc", params())).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def test_what_nobody_reads_is_not_computed(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        service._clients[0].socket = FullOnce(service._clients[0].socket, StepOutputs)  # type: ignore[assignment]
        with pytest.raises(EngineDeadError, match="too far ahead"):
            await last(llm, "abc", params(max_tokens=400))
        while service._engine.has_unfinished:
            await asyncio.sleep(0.01)
        assert service._engine.steps.num_steps < 20, "it was computed to its end"

    run(tiny_llama, tmp_path, body)


def test_only_a_reader_with_requests_is_waited_for(tiny_llama: Path, tmp_path: Path) -> None:
    waits: list[int] = []

    class Full:
        def send(self, frame: bytes, flags: int = 0) -> None:
            raise zmq.Again

        def poll(self, timeout: int, flags: int) -> int:
            if timeout:
                waits.append(timeout)
            return 0

    async def body(llm: AsyncLLM, service: EngineService) -> None:
        gone = service._clients[1]
        gone.socket, socket = Full(), gone.socket  # type: ignore[assignment]
        llm._connection._link.send(ResetPrefixCache(1, 0))  # type: ignore[attr-defined]
        while not gone.owed:
            await asyncio.sleep(0.01)
        assert len((await last(llm, "abc", params())).outputs[0].token_ids) == 12
        assert not waits
        gone.socket = socket

    run(tiny_llama, tmp_path, body)


def test_who_watches_hears_of_the_engine_until_it_leaves(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        connection = llm._connection
        assert isinstance(connection, RemoteEngine)
        # Nobody is at the other end of its socket: what is sent there costs it its requests.
        service._owners["of the other client"] = 1
        updates: list[ViewUpdate] = []
        connection.set_view_listener(updates.append)
        while not updates:
            await asyncio.sleep(0.01)
        assert updates[0].layout is not None
        connection.set_view_listener(None)
        num_updates = len(updates)
        connection._show(updates[0])  # it was on its way
        while service._engine.view.watchers:
            await asyncio.sleep(0.01)
        assert len(updates) == num_updates
        assert service._owners == {"of the other client": 1}

    run(tiny_llama, tmp_path, body)


def test_samples_that_end_later_than_others_are_heard(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        sampling = {"temperature": 1.0, "seed": 5, "stop_token_ids": list(range(0, 60, 5))}
        samples = (await last(llm, "abc", params(n=4, max_tokens=60, **sampling))).outputs
        assert all(sample.finish_reason for sample in samples)
        assert len({len(sample.token_ids) for sample in samples}) > 1

    run(tiny_llama, tmp_path, body, "uniproc")


def test_what_ends_with_one_message_is_forgotten_too(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        search = BeamSearchParams(beam_width=2, max_tokens=3)
        hop = params(max_tokens=1, logprobs=4, detokenize=False)
        connection, engine = llm._connection, service._engine
        connection.submit(connection.inputs.process("abc", hop, beam_search=search), Stream())
        await asyncio.to_thread(wait_for, lambda: engine.steps.num_steps and not engine.has_unfinished, "its end", 30)

    run(tiny_llama, tmp_path, body, "uniproc")


def test_whoever_waits_hears_that_the_connection_was_let_go(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        is_held, let_go = threading.Event(), threading.Event()

        def stop_after_the_first() -> None:
            if service._engine.steps.num_steps:
                is_held.set()
                let_go.wait()

        service._engine.view.while_computing = stop_after_the_first
        try:
            stream = llm.generate("abc", params(max_tokens=400, output_kind=OutputKind.DELTA))
            await anext(stream)
            await asyncio.to_thread(is_held.wait, 30)
            call = asyncio.create_task(llm.reset_prefix_cache())
            await asyncio.sleep(0)
            await asyncio.to_thread(llm.shutdown)
            with pytest.raises(EngineDeadError):
                [output async for output in stream]
            with pytest.raises(EngineDeadError):
                await call
            service._obey(AbortRequest(0, "0"))
        finally:
            let_go.set()

    run(tiny_llama, tmp_path, body)


def test_an_engine_that_ended_runs_nothing_and_keeps_its_totals(tiny_llama: Path, tmp_path: Path) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        connection = llm._connection
        assert isinstance(connection, RemoteEngine)
        totals = {"num_generation_tokens": 50, "num_preemptions": 3}
        stats = EngineStats(
            num_running=2,
            num_waiting=4,
            num_preempted=1,
            num_blocks=9,
            num_cached_blocks=2,
            num_held_blocks=7,
            **totals,
        )
        heard = EngineStatus("ready", sent_time=0.0, info=llm.info, stats=stats)
        service._engine.step = list  # type: ignore[method-assign]
        running = asyncio.create_task(last(llm, "abc", params(), request_id="a"))
        await asyncio.to_thread(wait_for, lambda: "a" in service._owners, "a request", 30)
        deltas: list[Delta] = [SampleDelta("a", 0, [97], finish_reason=FinishReason.LENGTH)]
        end = Received([heard], deltas=deltas, engine_ended=True)
        connection._link.receive = lambda: end  # type: ignore[method-assign]
        await asyncio.to_thread(wait_for, lambda: llm.errored, "the end", 30)
        assert (await running).outputs[0].token_ids == [97], "it was whole"
        service._obey(AbortRequest(0, "a"))
        assert connection.stats == EngineStats(**totals)
        with pytest.raises(EngineDeadError, match="ended"):
            await llm.reset_prefix_cache()

    run(tiny_llama, tmp_path, body)


def test_a_long_step_is_not_taken_for_death_unless_it_is_endless(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(llm: AsyncLLM, service: EngineService) -> None:
        connection, may_end = llm._connection, threading.Event()
        assert isinstance(connection, RemoteEngine)

        def in_a_long_step() -> bool:
            return connection.status is not None and connection.status.step_seconds > SILENCE_LIMIT_S

        service._engine.view.while_computing = lambda: may_end.wait(60)
        running = asyncio.create_task(last(llm, "abc", params()))
        try:
            await asyncio.to_thread(wait_for, in_a_long_step, "news from within a long step", 30)
            connection.check_alive()
            monkeypatch.setattr(remote_engine, "STEP_LIMIT_S", SILENCE_LIMIT_S)
            with pytest.raises(EngineDeadError, match="in one step for"):
                connection.check_alive()
        finally:
            may_end.set()
        assert len((await running).outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def test_only_time_in_which_a_client_listens_is_its_engines_silence(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LISTEN_S", 0.01), ("SILENCE_LIMIT_S", 0.1), ("FROZEN_AFTER_S", 0.2)):
        monkeypatch.setattr(remote_engine, name, seconds)

    async def body(llm: AsyncLLM, service: EngineService) -> None:
        connection, engine, may_go_on = llm._connection, service._engine, threading.Event()
        assert isinstance(connection, RemoteEngine)
        step, receive, num_stalls, stalled = engine.step, connection._link.receive, 0, threading.Event()

        def step_held() -> Any:
            assert engine.steps.num_steps != 2 or may_go_on.wait(30)
            return step()

        def receive_late() -> Received:
            """As if this process were stopped, three times, while it listened in vain."""
            nonlocal num_stalls
            num_stalls += 1
            if num_stalls <= 3:
                time.sleep(0.3)
                return Received([])
            stalled.set()
            return receive()

        engine.step = step_held  # type: ignore[method-assign]
        outputs = llm.generate("abc", params())
        await anext(outputs)
        connection._link.receive = receive_late  # type: ignore[method-assign]
        try:
            await asyncio.to_thread(wait_for, stalled.is_set, "three stalls", 30)
            connection.check_alive()
        finally:
            may_go_on.set()
        *_, end = [output async for output in outputs]
        assert len(end.outputs[0].token_ids) == 12

    run(tiny_llama, tmp_path, body)


def wait_for_beats(connection: RemoteEngine) -> None:
    """Several of its engine's heart, which beats fast after a change."""
    now = time.monotonic()
    wait_for(lambda: connection.status is not None and connection.status.sent_time > now + 0.1, "several beats", 30)


@dataclass
class SecondClient:
    """It reads the tokenizer when the engine loads, or is loaded, and `may_read` is set."""

    connection: RemoteEngine
    reads: threading.Event
    may_read: threading.Event
    finish_loading: Callable[[], None]
    """The engine's."""


def run_second(
    model: Path, directory: Path, loaded: bool, body: Callable[[SecondClient], Coroutine[Any, Any, None]]
) -> None:
    """`body` with a second client. Unless `loaded`, the engine says that it still loads."""

    async def with_second(llm: AsyncLLM, service: EngineService) -> None:
        heartbeat, info = service._heartbeat, llm.info
        checkpoint = open_checkpoint(str(model), with_weights=False)
        reads, may_read = threading.Event(), threading.Event()

        def finish_loading() -> None:
            heartbeat.info = info
            heartbeat.enter("ready")

        def read() -> FinishFiles:
            reads.set()
            assert may_read.wait(PATIENCE_MS / 1000)
            return lambda _: ClientFiles(llm.tokenizer, InputProcessor(llm.tokenizer, checkpoint.config, 100, 0))

        if not loaded:
            heartbeat.info = None
            heartbeat.enter("loading")
        engine_read, engine_end = os.pipe()
        connection = RemoteEngine(EngineAddresses(str(directory)), 1, engine_read, read)
        try:
            await body(SecondClient(connection, reads, may_read, finish_loading))
        finally:
            may_read.set()
            await asyncio.to_thread(connection.shutdown)
            os.close(engine_read)
            os.close(engine_end)

    run(model, directory, with_second)


async def assert_a_request_waits_for_the_tokenizer(client: SecondClient) -> None:
    waiting = asyncio.create_task(client.connection.wait_if_loaded())
    assert await asyncio.to_thread(client.reads.wait, PATIENCE_MS / 1000)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    client.may_read.set()
    await waiting
    assert client.connection.ready


def test_a_request_waits_for_its_client_once_the_engine_is_loaded(tiny_llama: Path, tmp_path: Path) -> None:
    """Of several API processes one may say that the server is ready while another has not heard of the engine yet."""
    run_second(tiny_llama, tmp_path, True, assert_a_request_waits_for_the_tokenizer)


def test_a_request_does_not_wait_for_ever_for_its_client(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_engine, "WELCOME_LIMIT_S", 0.01)

    async def body(client: SecondClient) -> None:
        await client.connection.wait_if_loaded()
        assert not client.connection.ready

    run_second(tiny_llama, tmp_path, True, body)


def test_what_a_client_heard_before_a_request_does_not_decide(tiny_llama: Path, tmp_path: Path) -> None:
    """While it reads the tokenizer, the news that the engine is loaded waits to be read too."""

    async def body(client: SecondClient) -> None:
        assert await asyncio.to_thread(client.reads.wait, PATIENCE_MS / 1000)
        client.finish_loading()
        assert client.connection.status is not None
        assert client.connection.status.state == "loading"
        await assert_a_request_waits_for_the_tokenizer(client)

    run_second(tiny_llama, tmp_path, False, body)


def test_a_client_that_cannot_read_the_tokenizer_tries_once_more_when_the_engine_has_loaded(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """However much of the engine's news came while it read."""

    async def with_second(llm: AsyncLLM, service: EngineService) -> None:
        reads: list[bool] = []
        first, heartbeat, info = llm._connection, service._heartbeat, llm.info
        assert isinstance(first, RemoteEngine)

        def read() -> FinishFiles:
            reads.append(True)
            heartbeat.info = info
            heartbeat.enter("ready")
            wait_for_beats(first)
            raise OSError("unreadable")

        heartbeat.info = None
        heartbeat.enter("loading")
        engine_read, engine_end = os.pipe()
        connection = RemoteEngine(EngineAddresses(str(tmp_path)), 1, engine_read, read)
        try:
            with pytest.raises(EngineDeadError, match="The tokenizer could not be read"):
                await connection.wait_ready()
            await asyncio.to_thread(connection._reader.join, PATIENCE_MS / 1000)
            assert len(reads) == 2
            assert not connection.ready
        finally:
            await asyncio.to_thread(connection.shutdown)
            os.close(engine_read)
            os.close(engine_end)

    run(tiny_llama, tmp_path, with_second)


def test_a_request_that_waits_for_an_engine_hears_of_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        engine_read, engine_end = os.pipe()
        connection = RemoteEngine(
            EngineAddresses(str(tmp_path)), 0, engine_read, lambda: pytest.fail("nothing to read")
        )
        waiting = [asyncio.create_task(wait()) for wait in (connection.wait_if_loaded, connection.wait_ready)]
        await asyncio.sleep(0)
        os.close(engine_end)
        try:
            for waits in waiting:
                with pytest.raises(EngineDeadError, match="ended"):
                    await waits
            with pytest.raises(EngineDeadError, match="ended"):
                _ = connection.tokenizer
            await asyncio.to_thread(connection._reader.join, PATIENCE_MS / 1000)
            assert not connection._reader.is_alive(), "there is nothing left to hear"
        finally:
            await asyncio.to_thread(connection.shutdown)
            os.close(engine_read)

    asyncio.run(main())


def test_a_client_takes_what_came_in_order_and_drops_bad_frames(tmp_path: Path) -> None:
    addresses, deltas = EngineAddresses(str(tmp_path)), [SampleDelta("a", 0, [i]) for i in range(40)]
    engine_read, engine_end = os.pipe()
    link = EngineLink(addresses, 0, engine_read)
    received = Received([])
    with zmq.Context() as context, context.socket(zmq.PUSH) as outputs:
        outputs.bind(addresses.outputs(0))
        frames = Frames[FromEngine](FromEngine)
        for message in (*(StepOutputs([delta]) for delta in deltas), Welcome()):
            outputs.send(b"\x80\x04.")
            outputs.send(frames.encode(message))
        while not received.answers:
            more = link.receive()
            assert not more.engine_ended
            received.answers += more.answers
            received.deltas += more.deltas
    assert (received.deltas, received.answers) == (deltas, [Welcome()])
    os.close(engine_end)
    assert link.receive().engine_ended
    link.close()
    os.close(engine_read)


def test_any_number_of_messages_can_wait_for_an_engine(tmp_path: Path) -> None:
    engine_read, engine_end = os.pipe()
    link = EngineLink(EngineAddresses(str(tmp_path)), 0, engine_read)
    for _ in range(3000):
        link.send(Hello(0))
    link.close()
    with pytest.raises(EngineDeadError, match="cannot be reached"):
        link.send(Hello(0))
    os.close(engine_end)
    os.close(engine_read)


def test_a_connection_is_let_go_without_its_loop(tmp_path: Path) -> None:
    engine_read, engine_end = os.pipe()

    async def connect() -> RemoteEngine:
        return RemoteEngine(EngineAddresses(str(tmp_path)), 0, engine_read, lambda: pytest.fail("nothing to read"))

    connection = asyncio.run(connect())
    connection.shutdown()
    connection.shutdown()
    os.close(engine_end)
    os.close(engine_read)


def test_a_request_does_not_wait_for_an_engine_that_still_loads(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_engine, "WELCOME_LIMIT_S", 600.0)

    async def body(client: SecondClient) -> None:
        connection = client.connection
        client.may_read.set()
        await connection.wait_if_loaded()
        assert connection.status is not None
        assert connection.status.state == "loading"
        assert not connection.ready
        client.reads.clear()
        await asyncio.to_thread(wait_for_beats, connection)
        client.finish_loading()
        await connection.wait_ready()
        assert not client.reads.is_set(), "the files were read again"

    run_second(tiny_llama, tmp_path, False, body)
