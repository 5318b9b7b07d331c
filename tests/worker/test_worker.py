import gc
import weakref
from pathlib import Path

from quire import LLM, SamplingParams
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


def workers() -> list[Worker]:
    return [found for found in gc.get_objects() if type(found) is Worker]
