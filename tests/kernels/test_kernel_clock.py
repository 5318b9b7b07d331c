"""Programs that are recorded while the clock is on tell what each of their kernels took; the bits and the other programs are as ever."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.native import has_native_module
from quire.kernels import native_module, native_rows
from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.kernel_clock import clocked_kernels, kernels_clocked
from quire.kernels.native_linear import DensePanels, empty_dense, linear, pack_
from quire.kernels.recording import Arena, Recording

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

NUM_TOKENS, WIDTH = 3, 32


def drawn(*shape: int) -> Array:
    array = empty_array(shape, DType.FLOAT32)
    array.stored[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return array


def packed() -> DensePanels:
    weight = empty_dense(WIDTH, WIDTH, DType.FLOAT32)
    weight.memory[:] = drawn(WIDTH, WIDTH)
    return pack_(weight)


def record(x: Array, weight: DensePanels) -> tuple[Recording, Array]:
    recording = native_module.new_recording(Arena(), num_rows=1)
    with recording:
        y = native_rows.gated(linear(x, weight), x, "silu")
    return recording, y


def test_kernels_are_told_in_their_order_with_the_steps_tokens() -> None:
    x, weight = drawn(NUM_TOKENS, WIDTH), packed()
    before, expected = record(x, weight)
    with kernels_clocked():
        recording, y = record(x, weight)
        native_module.run(recording)
        native_module.run(before)
        native_module.run(recording, (2, 1))
        linear, gated = clocked_kernels()
    assert expected.stored.all()
    assert np.array_equal(y.stored, expected.stored)
    assert (linear.name, gated.name) == ("Dense", "Gate")
    assert (linear.place, gated.place) == (0, 1)
    assert linear.weight_bytes >= WIDTH * WIDTH * 4
    assert gated.weight_bytes == 0
    for kernel in (linear, gated):
        assert [(time.num_tokens, time.num_rows) for time in kernel.times] == [(None, None), (2, 1)]
        assert all(time.seconds >= 0 for time in kernel.times)


def test_without_the_clock_nothing_is_kept() -> None:
    with kernels_clocked():
        pass
    recording, _ = record(drawn(NUM_TOKENS, WIDTH), packed())
    native_module.run(recording)
    assert clocked_kernels() == []
