"""Paged attention in the native kernel: no K or V is gathered, and a row's bits do not depend on the others."""

from __future__ import annotations

import numpy as np

from quire.attention.backend import AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.core.native import has_native_module
from quire.kernels import native_attention
from quire.kernels.array import Array
from quire.kernels.dtype import NATIVE_DTYPES, DType


class CpuBackend:
    name = "cpu"
    capabilities = AttentionCapabilities(
        # None where the kernels were not built: never chosen.
        dtypes=NATIVE_DTYPES if has_native_module() else frozenset(),
        sliding_window=True,
        logit_softcap=True,
        bitwise_dtypes=NATIVE_DTYPES,
        rotates=True,
        int8_kv=True,
    )

    def attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        cache: LayerKVCache,
        shape: AttentionShape,
        batch: ForwardBatch,
        rotation: tuple[Array, Array] | None = None,
    ) -> Array:
        rows = batch.groups[batch.layer_groups[shape.layer]]
        rotated = None if rotation is None else (query, *rotation)
        native_attention.write_kv(key, value, cache.key, cache.value, rows.slots, rotated=rotated)
        if self.name not in batch.scratch:
            batch.scratch[self.name] = (_numbers(batch.query_starts), _numbers(batch.context_lens))
        query_starts, context_lens = batch.scratch[self.name]
        return native_attention.paged_attention(
            batch.queries(query),
            cache.key,
            cache.value,
            rows.block_tables,
            query_starts,
            context_lens,
            scale=shape.scale,
            window=shape.window,
            logit_softcap=shape.logit_softcap,
        ).flatten(1)


def _numbers(values: list[int]) -> Array:
    return Array(np.array(values, np.int64), DType.INT64)
