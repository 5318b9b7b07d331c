"""The streaming face: deltas add up, leaving early aborts, ids are kept apart, death is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.engine.held_engine import hold_after

from quire import LLM, AsyncLLM, SamplingParams
from quire.core.native import has_native_module
from quire.core.sampling_params import OutputKind
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.grammar_check import GrammarCheck
from quire.engine.local_engine import LocalEngine
from quire.errors import EngineDeadError, InvalidRequestError

PROMPT = list(range(60, 100))


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **fields})


def run(tiny_llama: Path, body: Callable[[AsyncLLM], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def main() -> None:
        async with AsyncLLM(str(tiny_llama), dtype="float32", num_threads=1, num_blocks=100, **config) as llm:
            await asyncio.wait_for(body(llm), 60)

    asyncio.run(main())


def connection_of(llm: AsyncLLM) -> LocalEngine:
    assert isinstance(llm._connection, LocalEngine)
    return llm._connection


async def idle(llm: AsyncLLM) -> None:
    """Wait until the engine thread has nothing left and no block is held."""
    client = connection_of(llm)._engine.client
    while client.has_unfinished or client.engine.scheduler.kv.pool.num_held:
        await asyncio.sleep(0.01)


def test_deltas_add_up_to_the_offline_answer(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), dtype="float32", num_threads=1, num_blocks=100) as llm:
        expected = llm.generate(PROMPT, greedy(), use_tqdm=False)[0].outputs[0]

    async def body(llm: AsyncLLM) -> None:
        text, token_ids, num_outputs = "", [], 0
        async for output in llm.generate(PROMPT, greedy(output_kind=OutputKind.DELTA)):
            text += output.outputs[0].text
            token_ids += output.outputs[0].token_ids
            num_outputs += 1
        assert (text, token_ids) == (expected.text, expected.token_ids)
        assert num_outputs > 10
        assert output.finished

    run(tiny_llama, body)


def test_a_few_bad_words_wait_for_many_elsewhere_than_on_the_event_loop(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(llm: AsyncLLM) -> None:
        begun, may_go_on = threading.Event(), threading.Event()
        encode_plain = llm.tokenizer.encode_plain

        def held(texts: list[str]) -> list[list[int]]:
            begun.set()
            assert may_go_on.wait(30)
            return encode_plain(texts)

        monkeypatch.setattr(llm.tokenizer, "encode_plain", held)

        async def ask(word: str) -> None:
            async for _ in llm.generate(PROMPT, greedy(bad_words=[word])):
                pass

        asking = asyncio.gather(ask("many" * 500), ask("few"))
        await asyncio.to_thread(begun.wait, 30)
        may_go_on.set()
        await asking

    run(tiny_llama, body)


def test_grammars_that_wait_for_their_compiler_hold_up_nothing_else(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, compiling = threading.Event(), threading.Event()

    def compile_slowly(check: GrammarCheck, wanted: StructuredOutputs) -> StructuredOutputs:
        compiling.set()
        assert compiled.wait(60)
        raise InvalidRequestError("too large", field="structured_outputs")

    monkeypatch.setattr(GrammarCheck, "resolve", compile_slowly)

    async def ask(llm: AsyncLLM, number: int) -> None:
        params = greedy(structured_outputs=StructuredOutputs(choice=(str(number),)))
        with pytest.raises(InvalidRequestError, match="too large"):
            await anext(llm.generate(PROMPT, params))

    async def body(llm: AsyncLLM) -> None:
        asking = [asyncio.create_task(ask(llm, number)) for number in range(40)]
        try:
            while not compiling.is_set():
                await asyncio.sleep(0.01)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "a thread of the loop's own"), 20)
        finally:
            compiled.set()
        await asyncio.gather(*asking)

    run(tiny_llama, body)


def test_many_streams_at_once(tiny_llama: Path) -> None:
    async def collect(llm: AsyncLLM, prompt: list[int]) -> list[int]:
        async for output in llm.generate(prompt, greedy()):
            last = output
        return last.outputs[0].token_ids

    async def body(llm: AsyncLLM) -> None:
        prompts = [PROMPT[:k] for k in range(1, 17)]
        together = await asyncio.gather(*(collect(llm, prompt) for prompt in prompts))
        assert together == [await collect(llm, prompt) for prompt in prompts]

    run(tiny_llama, body)


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
def test_leaving_early_frees_the_blocks(tiny_llama: Path, num_steps_in_flight: int) -> None:
    async def body(llm: AsyncLLM) -> None:
        # What ends the hold is that it is left.
        hold_after(connection_of(llm), 2)
        stream = llm.generate(PROMPT, greedy(max_tokens=400))
        async for _ in stream:
            break
        await stream.aclose()
        await idle(llm)

        first_came = asyncio.Event()

        async def consume() -> None:
            async for _ in llm.generate(PROMPT, greedy(max_tokens=400)):
                first_came.set()

        hold_after(connection_of(llm), 2)
        task = asyncio.create_task(consume())
        await first_came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(llm)
        assert connection_of(llm)._engine.client.engine.steps.num_steps < 20, "they were computed to their end"

    run(tiny_llama, body, num_steps_in_flight=num_steps_in_flight)


def test_a_chat_is_a_prompt_made_by_the_template(tiny_llama: Path) -> None:
    async def body(llm: AsyncLLM) -> None:
        messages = [{"role": "user", "content": "ab"}]
        prompt = await llm.chat_prompt(messages, add_generation_prompt=False)
        assert prompt != await llm.chat_prompt(messages)
        asked = [output async for output in llm.chat(messages, greedy(), "mine", add_generation_prompt=False)][-1]
        assert asked.request_id == "mine"
        expected = [output async for output in llm.generate(prompt, greedy())][-1]
        assert asked.outputs[0].token_ids == expected.outputs[0].token_ids

        may_go_on = hold_after(connection_of(llm), 2)
        answer = llm.chat(messages, greedy(max_tokens=400))
        async for _ in answer:
            break
        await answer.aclose()
        may_go_on.set()
        await idle(llm)

    run(tiny_llama, body)


def test_abort_by_id_ends_the_stream(tiny_llama: Path) -> None:
    async def body(llm: AsyncLLM) -> None:
        may_go_on = hold_after(connection_of(llm), 2)
        num_outputs, last = 0, None
        async for output in llm.generate(PROMPT, greedy(max_tokens=400), request_id="mine"):
            num_outputs, last = num_outputs + 1, output
            if num_outputs == 1:
                await llm.abort("mine")
                may_go_on.set()
        assert last is not None
        assert last.outputs[0].finish_reason == "abort"
        assert num_outputs < 400
        await llm.abort("unknown")
        await idle(llm)

    run(tiny_llama, body)


def test_an_id_in_use_is_refused_and_its_owner_goes_on(tiny_llama: Path) -> None:
    async def body(llm: AsyncLLM) -> None:
        may_go_on = hold_after(connection_of(llm), 2)
        first = llm.generate(PROMPT, greedy(), request_id="same")
        await anext(first)
        with pytest.raises(InvalidRequestError, match="same"):
            await anext(llm.generate(PROMPT, greedy(), request_id="same"))
        may_go_on.set()
        async for output in first:
            last = output
        assert len(last.outputs[0].token_ids) == 20

    run(tiny_llama, body)


def test_bad_input_is_refused_before_the_engine_sees_it(tiny_llama: Path) -> None:
    async def body(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequestError):
            await anext(llm.generate([], greedy()))
        await idle(llm)

    run(tiny_llama, body)


def test_shutdown_ends_pending_streams(tiny_llama: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM(str(tiny_llama), num_threads=1, num_blocks=100)
        hold_after(connection_of(llm), 2)
        stream = llm.generate(PROMPT, greedy(max_tokens=400))
        await anext(stream)
        await asyncio.to_thread(llm.shutdown)
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError):
            await anext(llm.generate(PROMPT, greedy()))
        assert llm.errored

    asyncio.run(main())


def test_whoever_asks_for_a_reset_may_leave(tiny_llama: Path) -> None:
    """Before the engine answers: alone, or with the event loop."""
    llm = AsyncLLM(str(tiny_llama), num_threads=1, num_blocks=100)
    unhandled: list[dict[str, Any]] = []
    may_go_on = threading.Event()

    def hold() -> None:
        assert may_go_on.wait(30)

    async def ask(then: Callable[[], None]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        may_go_on.clear()
        connection_of(llm)._commands.put(hold)
        asking = asyncio.create_task(llm.reset_prefix_cache())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        then()
        await asyncio.sleep(0)

    async def ask_again() -> bool:
        return await asyncio.wait_for(llm.reset_prefix_cache(), 30)

    async def stay() -> None:
        await ask(may_go_on.set)
        assert await ask_again()

    asyncio.run(stay())
    assert unhandled == []
    asyncio.run(ask(lambda: None))
    may_go_on.set()
    assert asyncio.run(ask_again())
    llm.shutdown()


def test_an_engine_that_died_of_an_error_without_words_says_its_kind(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(llm: AsyncLLM) -> None:
        def step() -> None:
            raise MemoryError

        monkeypatch.setattr(connection_of(llm)._engine.client, "step", step)
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="MemoryError"):
                await anext(llm.generate(PROMPT, greedy()))

    run(tiny_llama, body)


IN_USE_AT_EXIT = """
import asyncio, sys, threading
from quire import AsyncLLM, SamplingParams

started = threading.Event()

async def main():
    global llm
    llm = AsyncLLM(sys.argv[1], backend="cpu", num_blocks=600)
    async for _ in llm.generate([65, 66], SamplingParams(max_tokens=4000, ignore_eos=True, temperature=0.0)):
        started.set()

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(main(), loop)
assert started.wait(60)
sys.exit(3)
"""


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_a_program_that_ends_while_a_request_runs_has_its_own_exit_status(tiny_llama: Path) -> None:
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", IN_USE_AT_EXIT, tiny_llama], capture_output=True, timeout=120)
        assert ended.returncode == 3, ended.stderr.decode()


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ("fcfs", {"cache_salt": 5}),
        ("fcfs", {"request_id": ["a"]}),
        ("fcfs", {"sampling_params": {"temperature": 0}}),
        ("fcfs", {"sampling_params": {}}),
        ("priority", {"priority": "high"}),
        ("priority", {"priority": float("nan")}),
        ("fair", {"tenant": ["a"]}),
    ],
)
def test_a_field_of_the_wrong_type_is_its_callers_alone(tiny_llama: Path, policy: str, fields: dict[str, Any]) -> None:
    async def body(llm: AsyncLLM) -> None:
        async def collect(**given: Any) -> list[int]:
            async for output in llm.generate(PROMPT, **{"sampling_params": greedy(max_tokens=100), **given}):
                last = output
            return last.outputs[0].token_ids

        neighbour = asyncio.create_task(collect())
        with pytest.raises(InvalidRequestError, match=f"{next(iter(fields))} must be"):
            await collect(**fields)
        assert len(await neighbour) == 100
        assert not llm.errored
        await llm.check_health()

    run(tiny_llama, body, scheduling_policy=policy)
