"""Paged attention in the native kernel: no K or V is gathered, and a row's bits do not depend on the others."""

from __future__ import annotations

import torch

from quire.attention.backend import AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.core.native import has_native_module
from quire.kernels import native


class CpuBackend:
    name = "cpu"
    instruction_set: str | None = None
    """One of `native.instruction_sets()`; the fastest unless given."""
    capabilities = AttentionCapabilities(
        # None where the kernels were not built: never chosen.
        dtypes=native.DTYPES if has_native_module() else frozenset(),
        sliding_window=True,
        logit_softcap=True,
        bitwise_dtypes=native.DTYPES,
    )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: LayerKVCache,
        shape: AttentionShape,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        rows = batch.groups[batch.layer_groups[shape.layer]]
        native.write_kv(key, value, cache.key, cache.value, rows.slots, instruction_set=self.instruction_set)
        if self.name not in batch.scratch:
            batch.scratch[self.name] = (torch.tensor(batch.query_starts), torch.tensor(batch.context_lens))
        query_starts, context_lens = batch.scratch[self.name]
        return native.paged_attention(
            query,
            cache.key,
            cache.value,
            rows.block_tables,
            query_starts,
            context_lens,
            scale=shape.scale,
            window=shape.window,
            logit_softcap=shape.logit_softcap,
            instruction_set=self.instruction_set,
        ).flatten(1)
