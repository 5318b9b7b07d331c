"""The tensors behind the blocks."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from quire.core.kv_layout import KVCacheDType, KVSpec, make_kv_cache_config
from quire.core.native import has_native_module
from quire.kernels import native_attention
from quire.kernels.array import Arrays
from quire.kernels.tensor import Tensors
from quire.kernels.torch_tensors import TorchTensors
from quire.worker.kv_cache import KVCache

FULL = KVSpec(2, 8)
SLIDING = KVSpec(2, 8, 4)


OF_TORCH = TorchTensors()


def make(tensors: Tensors = OF_TORCH, dtype: KVCacheDType = "float32") -> KVCache:
    specs: list[KVSpec] = [SLIDING, FULL, SLIDING, FULL]
    return KVCache(make_kv_cache_config(specs, block_size=4, dtype=dtype, num_blocks=6), 4, tensors, dtype)


def test_groups_share_slots_not_layers_of_one_group() -> None:
    cache = make()
    assert cache.layers[0].key.data_ptr() == cache.layers[1].key.data_ptr()
    assert cache.layers[0].key.data_ptr() != cache.layers[2].key.data_ptr()
    assert cache.layers[0].key.data_ptr() != cache.layers[0].value.data_ptr()


def test_dtypes_start_at_zero_and_are_writable() -> None:
    dtypes: dict[KVCacheDType, torch.dtype] = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
    for name, dtype in dtypes.items():
        cache = make(OF_TORCH, name)
        assert cache.layers[3].value.dtype is dtype
        assert cache.layers[3].value.shape == (6, 4, 2, 8)
        assert not cache.layers[3].value.any()
        cache.layers[3].value[2] = 1.5
        assert cache.layers[3].value[2].sum() == 1.5 * 64


def test_copies_read_every_source_before_any_is_overwritten() -> None:
    cache = make()
    held = [tensor for slot in cache.slots for tensor in (slot.key, slot.value)]
    for i, tensor in enumerate(held):
        for block in range(6):
            tensor[block] = 10 * i + block
    cache.copy_blocks([(1, 2), (2, 3)])
    for i, tensor in enumerate(held):
        assert [tensor[block].unique().tolist() for block in range(4)] == [[10 * i + block] for block in (0, 1, 1, 2)]


def test_arrays_are_copied_too() -> None:
    cache = make(Arrays(), "bfloat16")
    for block in range(6):
        cache.layers[0].key[block] = float(block)
    cache.copy_blocks([(1, 2), (2, 3)])
    found = Arrays().numbers(cache.layers[0].key)
    assert [np.unique(found[block]).tolist() for block in range(4)] == [[0], [1], [1], [2]]
    assert not Arrays().numbers(cache.layers[0].value).any()


@pytest.mark.parametrize("touched_by_threads", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_memory_is_what_the_layout_counts(dtype: KVCacheDType, touched_by_threads: int) -> None:
    specs: list[KVSpec] = [SLIDING, FULL, SLIDING, FULL]
    config = make_kv_cache_config(specs, block_size=4, dtype=dtype, num_blocks=6)
    slots = KVCache(config, 4, Arrays(), dtype, touched_by_threads=touched_by_threads).slots
    assert sum(x.stored.nbytes for slot in slots for x in (slot.key, slot.value)) == 6 * config.bytes_per_block


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_copied_block_is_read_as_the_first(dtype: KVCacheDType) -> None:
    """Copy on write: codes go with their scales."""
    cache = make(Arrays(), dtype)
    x = Arrays().of(np.random.default_rng(0).standard_normal((4, 2, 8), np.float32) * 100)
    layer = cache.layers[1]
    native_attention.write_kv(x, x, layer.key, layer.value, Arrays().of(np.arange(4) + 1 * 4))
    cache.copy_blocks([(1, 5)])

    def attend(block: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        table, starts, lens = (Arrays().of(np.array(numbers)) for numbers in ([[block]], [0, 4], [4]))
        return native_attention.paged_attention(x, layer.key, layer.value, table, starts, lens, scale=1e-4).stored

    assert np.array_equal(attend(5), attend(1))
    assert np.abs(attend(1)).max() > 10


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's count of the pages that are there")
@pytest.mark.parametrize("tensors", [Arrays(), OF_TORCH])
def test_memory_is_there_at_once_where_it_is_asked_for(tensors: Tensors) -> None:
    config = make_kv_cache_config([FULL] * 4, block_size=16, dtype="float32", num_blocks=8192)
    num_bytes = config.num_blocks * config.bytes_per_block
    assert num_bytes == 64 << 20

    def grown_by(threads: int) -> tuple[int, KVCache]:
        before = resident_bytes()
        cache = KVCache(config, 4, tensors, "float32", touched_by_threads=threads)
        return resident_bytes() - before, cache

    grown, as_used = grown_by(0)
    assert grown < num_bytes / 4
    grown, at_once = grown_by(2)
    assert grown > num_bytes * 3 / 4
    for cache in (as_used, at_once):
        assert cache.layers[3].value.shape == (8192, 16, 2, 8)
        cache.layers[3].value[8191] = 1.0
        assert tensors.numbers(cache.layers[3].value)[8190:].sum() == 16 * 2 * 8
        assert not tensors.numbers(cache.layers[3].key).any()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
