import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.inside import runner_of

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.kernels.native_module import instruction_sets
from quire.worker.worker import Worker


def test_a_worker_goes_with_its_engine(tiny_llama: Path) -> None:
    """At once, and its gigabytes with it: the collector of cycles may take a long time to come by."""
    gc.collect()
    others = {id(worker) for worker in workers()}
    llm = LLM(str(tiny_llama), dtype="float32")
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=3), use_tqdm=False)
    (worker,) = (weakref.ref(worker) for worker in workers() if id(worker) not in others)
    gc.disable()
    try:
        del llm
        assert worker() is None
    finally:
        gc.enable()


def test_rows_go_with_their_requests(tiny_llama: Path) -> None:
    """As the next step is run, which is the first to know."""
    with LLM(str(tiny_llama), dtype="float32") as llm:
        for together in (5, 1):
            prompts: list[Any] = [[5, 6, 7 + i] for i in range(together)]
            llm.generate(prompts, SamplingParams(max_tokens=3), use_tqdm=False)
        assert len(runner_of(llm)._table.rows) == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's count of the pages that are there")
@pytest.mark.parametrize("preallocate", [False, True])
def test_the_memory_of_the_cache_is_taken_when_it_is_to_be(tiny_llama: Path, preallocate: bool) -> None:
    """64 MiB: 262,144 tokens of 256 bytes."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    sizes: dict[str, Any] = {"block_size": 128, "dtype": "float32", "num_threads": 2}
    with LLM(str(tiny_llama), num_blocks=10, **sizes):
        before = resident()
    with LLM(str(tiny_llama), num_blocks=2048, preallocate_kv_cache=preallocate, **sizes):
        assert (resident() - before > 48 * 2**20) is preallocate


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_what_computes_is_said(tiny_llama: Path, instruction_set: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "quire"), LLM(str(tiny_llama), instruction_set=instruction_set, num_threads=1):
        assert f"Native kernels: {instruction_set}, 1 threads." in caplog.messages


def workers() -> list[Worker]:
    return [found for found in gc.get_objects() if type(found) is Worker]
