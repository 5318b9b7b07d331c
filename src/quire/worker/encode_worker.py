"""One device's share of an encoder: loads it, carries out steps of whole texts."""

from __future__ import annotations

import itertools

import numpy as np

from quire.attention.forward_batch import ForwardBatch
from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.arrays import Float32Array
from quire.core.embedding import EncodePlan, EncodeResult, EncodeRow, Vectors
from quire.kernels.tensor import Tensor, Tensors
from quire.layers.pooling import pool, shorten_and_normalize
from quire.models.registry import ENCODERS
from quire.worker.encode_program import EncodeProgram
from quire.worker.load import load
from quire.worker.step_threads import prepare_thread


class EncodeWorker:
    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        self._ops, self._model = load(ENCODERS, config, checkpoint)
        self._tensors = self._ops.tensors
        self._program = EncodeProgram(self._model, config.max_model_len) if config.records_steps else None
        self._compute = self._tensors.computing(self._hidden)

    def execute(self, plan: EncodePlan) -> EncodeResult:
        prepare_thread(self._ops, self._config)
        texts = [row.token_ids for row in plan.rows]
        hidden = self._compute(texts)
        ends = itertools.pairwise(itertools.accumulate(map(len, texts), initial=0))
        rows = [self._vectors(hidden[first:last], row) for (first, last), row in zip(ends, plan.rows, strict=True)]
        return EncodeResult(plan.step_id, rows)

    def _hidden(self, texts: list[list[int]]) -> Float32Array:
        """[T, D]; by way of `Tensors.computing`."""
        hidden: Tensor | None = None if self._program is None else self._program.hidden(texts)
        if hidden is None:
            hidden = self._model.forward(pack(texts, self._tensors))
        return self._tensors.numbers(hidden)

    def _vectors(self, hidden: Float32Array, row: EncodeRow) -> Vectors | str:
        """Or why there are none."""
        pooling = self._model.config.pooling
        assert pooling is not None, "an encoder's config says how to pool"
        params = row.params
        normalize = pooling.normalize if params.normalize is None else params.normalize
        with np.errstate(all="ignore"):  # What is not finite is looked for below.
            vectors = pool(hidden, pooling.kind) if params.task == "embed" else hidden
            vectors = shorten_and_normalize(vectors, params.dimensions, normalize)
        if not np.isfinite(vectors).all():
            return "the embedding has values that are infinite or not numbers; load the model in float32"
        return Vectors(vectors.astype("<f4", copy=False).tobytes(), vectors.shape[0])


def pack(texts: list[list[int]], tensors: Tensors) -> ForwardBatch:
    """Whole texts side by side, without padding."""
    lengths = [len(text) for text in texts]
    return ForwardBatch(
        token_ids=tensors.of(np.array(list(itertools.chain.from_iterable(texts)), np.int64)),
        positions=tensors.of(np.concatenate([np.arange(length) for length in lengths])),
        query_starts=[0, *itertools.accumulate(lengths)],
        context_lens=lengths,
        groups=[],
        layer_groups=[],
    )
