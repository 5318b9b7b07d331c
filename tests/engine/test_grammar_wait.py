"""Running requests go on while another one's grammar is compiled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from quire import AsyncLLM, SamplingParams
from quire.core.outputs import RequestOutput
from quire.core.structured_outputs import StructuredOutputs
from quire.sampling.grammar_compiler import GrammarCompiler

SHAPED = SamplingParams(structured_outputs=StructuredOutputs(regex="[ab]{3}"), max_tokens=8, seed=1)
PLAIN = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)


async def last(llm: AsyncLLM, params: SamplingParams, request_id: str | None = None) -> RequestOutput:
    return [output async for output in llm.generate({"prompt_token_ids": [1, 2, 3]}, params, request_id)][-1]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiles once it may; `begun` says that it wants to."""
    may_go_on, begun = threading.Event(), threading.Event()
    compile_it = GrammarCompiler.compile

    def held(self: GrammarCompiler, grammar: str) -> Any:
        begun.set()
        assert may_go_on.wait(120)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", held)
    yield may_go_on, begun
    may_go_on.set()


def test_others_run_to_their_end_meanwhile(tiny_llama: Path, compiler: Any) -> None:
    may_go_on, begun = compiler

    async def main() -> None:
        async with AsyncLLM(str(tiny_llama), num_blocks=64) as llm:
            shaped = asyncio.create_task(last(llm, SHAPED))
            await asyncio.to_thread(begun.wait, 60)
            plain = await asyncio.wait_for(last(llm, PLAIN), 60)
            assert len(plain.outputs[0].token_ids) == 40
            assert not shaped.done()
            may_go_on.set()
            assert set((await shaped).outputs[0].text) <= {"a", "b"}

    asyncio.run(main())


def test_one_that_waits_for_its_grammar_can_be_aborted(tiny_llama: Path, compiler: Any) -> None:
    _, begun = compiler

    async def main() -> None:
        async with AsyncLLM(str(tiny_llama), num_blocks=64) as llm:
            shaped = asyncio.create_task(last(llm, SHAPED, "shaped"))
            await asyncio.to_thread(begun.wait, 60)
            await llm.abort("shaped")
            assert (await asyncio.wait_for(shaped, 60)).outputs[0].finish_reason == "abort"
            assert len((await asyncio.wait_for(last(llm, PLAIN), 60)).outputs[0].token_ids) == 40

    asyncio.run(main())
