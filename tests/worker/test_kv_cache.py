"""The tensors behind the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quire.core.kv_layout import FullAttentionSpec, KVSpec, SlidingWindowSpec, make_kv_cache_config
from quire.kernels.array import Arrays
from quire.kernels.dtype import DType
from quire.kernels.tensor import Tensors
from quire.kernels.torch_tensors import TorchTensors
from quire.worker.kv_cache import KVCache

FULL = FullAttentionSpec(2, 8)
SLIDING = SlidingWindowSpec(2, 8, 4)


OF_TORCH = TorchTensors()


def make(tensors: Tensors = OF_TORCH, dtype: Any = torch.float32) -> KVCache:
    specs: list[KVSpec] = [SLIDING, FULL, SLIDING, FULL]
    return KVCache(make_kv_cache_config(specs, block_size=4, dtype="float32", num_blocks=6), 4, tensors, dtype)


def test_groups_share_slots_not_layers_of_one_group() -> None:
    cache = make()
    assert cache.layers[0].key.data_ptr() == cache.layers[1].key.data_ptr()
    assert cache.layers[0].key.data_ptr() != cache.layers[2].key.data_ptr()
    assert cache.layers[0].key.data_ptr() != cache.layers[0].value.data_ptr()


def test_dtypes_start_at_zero_and_are_writable() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cache = make(OF_TORCH, dtype)
        assert cache.layers[3].value.dtype is dtype
        assert cache.layers[3].value.shape == (6, 4, 2, 8)
        assert not cache.layers[3].value.any()
        cache.layers[3].value[2] = 1.5
        assert cache.layers[3].value[2].sum() == 1.5 * 64


def test_copies_read_every_source_before_any_is_overwritten() -> None:
    cache = make()
    for block in range(6):
        cache.layers[0].key[block] = block
    cache.copy_blocks([(1, 2), (2, 3)])
    assert [cache.layers[0].key[block].unique().tolist() for block in range(4)] == [[0], [1], [1], [2]]


def test_arrays_are_copied_too() -> None:
    cache = make(Arrays(), DType.BFLOAT16)
    for block in range(6):
        cache.layers[0].key[block] = float(block)
    cache.copy_blocks([(1, 2), (2, 3)])
    found = Arrays().numbers(cache.layers[0].key)
    assert [np.unique(found[block]).tolist() for block in range(4)] == [[0], [1], [1], [2]]
    assert not Arrays().numbers(cache.layers[0].value).any()
