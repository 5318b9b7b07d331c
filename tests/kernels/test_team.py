"""The kernels' threads: several callers at a time, more threads and fewer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quire.core.native import has_native_module
from quire.kernels import native
from quire.kernels.array import Arrays
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels, dense_linear, empty_dense, pack_
from quire.kernels.tensor import Numbers

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


@pytest.fixture(scope="module")
def weight() -> DensePanels:
    made = empty_dense(512, 256, DType.FLOAT32)
    made.memory[:] = Arrays().of(np.random.default_rng(0).standard_normal((512, 256), np.float32))
    return pack_(made)


def product(weight: DensePanels, num_threads: int) -> Numbers:
    native.use_num_threads(num_threads)
    x = Arrays().of(np.random.default_rng(1).standard_normal((20, 256), np.float32))
    return dense_linear(x, weight).stored


def test_callers_at_the_same_time_each_get_their_own_result(weight: DensePanels) -> None:
    before = native.thread_count()
    try:
        expected = product(weight, 1)
    finally:
        native.use_num_threads(before)
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda n: product(weight, 1 + n % 4), range(200)))
    assert all(np.array_equal(result, expected) for result in found)
