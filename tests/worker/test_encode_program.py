"""Encoders' steps as a program: the bits of the same step through Python, whatever ran before."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from quire.checkpoint.checkpoint import open_checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeRow, PoolingParams
from quire.core.native import has_native_module
from quire.kernels import native_module
from quire.worker.encode_program import MAX_TEXTS, MAX_TOKENS
from quire.worker.encode_worker import EncodeWorker

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


def worker(model: Path, *, enforce_eager: bool, dtype: str) -> EncodeWorker:
    config = WorkerConfig(
        model=str(model),
        dtype=dtype,
        kv_cache_dtype=dtype,
        backend="cpu",
        num_threads=2,
        max_num_seqs=1,
        max_model_len=40,
        enforce_eager=enforce_eager,
    )
    return EncodeWorker(config, open_checkpoint(str(model)))


def vectors(worker: EncodeWorker, texts: list[list[int]]) -> list[npt.NDArray[np.float32]]:
    """Of each token."""
    params = PoolingParams(task="token_embed", normalize=False)
    found = worker.execute(EncodePlan(0, [EncodeRow(text, params) for text in texts])).rows
    return [row.to_array() for row in found if not isinstance(row, str)]


def some_texts(rng: random.Random, num_texts: int, longest: int) -> list[list[int]]:
    return [[rng.randrange(20) for _ in range(rng.randint(1, longest))] for _ in range(num_texts)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_recorded_step_has_the_bits_of_python(tiny_bert: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[tuple[int, int]] = []
    run = native_module.run
    monkeypatch.setattr(
        native_module, "run", lambda recording, counts: (programs.append(counts), run(recording, counts))
    )
    recorded, eager = (worker(tiny_bert, enforce_eager=how, dtype=dtype) for how in (False, True))
    rng = random.Random(0)
    steps = [some_texts(rng, *size) for size in [(1, 1), (3, 40), (12, 40), (1, 40), (MAX_TEXTS, 8), (2, 17), (5, 16)]]
    for texts in steps:
        found, expected = vectors(recorded, texts), vectors(eager, texts)
        assert [len(own) for own in found] == [len(text) for text in texts]
        assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert programs == [(sum(map(len, texts)), len(texts)) for texts in steps]
    assert not np.array_equal(found[0][0], found[1][0])


def test_larger_steps_go_through_python(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, eager = (worker(tiny_bert, enforce_eager=how, dtype="float32") for how in (False, True))
    monkeypatch.delattr(native_module, "run")
    for texts in ([[5] * 32] * (MAX_TOKENS // 32 + 1), [[5]] * (MAX_TEXTS + 1)):
        found = vectors(recorded, texts)
        assert all(np.array_equal(*pair) for pair in zip(found, vectors(eager, texts), strict=True))
