import errno
import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from quire.kernels import weight_memory
from quire.kernels.dtype import DType
from quire.kernels.fresh_memory import CHUNK, LINE, LargePages, ask_for_large_pages
from quire.kernels.weight_memory import empty_weight


@pytest.fixture(autouse=True)
def pages_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_pages", LargePages())


def test_weights_lie_apart_on_cache_lines() -> None:
    weights = [empty_weight((3, n), DType.UINT8) for n in range(1, 200)]
    for n, weight in enumerate(weights, 1):
        weight.stored.fill(n)
    assert all(weight.data_ptr() % LINE == 0 for weight in weights)
    assert all(bool(np.all(weight.stored == n)) for n, weight in enumerate(weights, 1))


def test_a_weight_larger_than_a_chunk_has_its_own() -> None:
    small, large = empty_weight((5,), DType.FLOAT32), empty_weight((CHUNK // 4 + 1,), DType.FLOAT32)
    large.stored[-1] = 1.0
    assert large.shape == (CHUNK // 4 + 1,)
    assert small.dtype == DType.FLOAT32


def test_a_system_without_large_pages_gives_small_ones() -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    ask_for_large_pages(Refusing(-1, 4096))


def test_no_values_need_no_memory() -> None:
    assert empty_weight((0, 4), DType.BFLOAT16).shape == (0, 4)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_memory_goes_back_with_the_last_weight() -> None:
    first, second = (empty_weight((CHUNK // 4,), DType.UINT8) for _ in range(2))
    address = second.data_ptr()
    del first
    gc.collect()
    second.stored[-1] = 1
    assert is_mapped(address)
    del second
    gc.collect()
    assert not is_mapped(address)
    assert empty_weight((4,), DType.UINT8).shape == (4,)


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(first, 16) <= address < int(last, 16) for first, last in ranges)
