"""What is recorded runs later, with the numbers that are there then, and gives the bits of the eager kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from tests.kernels.forced import forced

from quire.core.native import has_native_module
from quire.kernels import native
from quire.kernels.native_linear import DensePanels, dense_linear, empty_dense, pack_
from quire.kernels.recording import Arena, NotRecordable, current_recording

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Norms, views, sums, a product with a number and a gate, as layers use them."""
    hidden = native.rms_norm(x, weight, 1e-5) * 0.25
    for _ in range(5):
        gate, up = hidden.chunk(2, dim=-1)
        gated = native.gated(gate, up, "silu")
        hidden = native.rms_norm(hidden + x, weight, 1e-5)
        hidden = hidden.view(len(x), 2, -1).flatten(1) + x
    return native.gated(gated, gated, "relu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("instruction_set", native.instruction_sets())
@torch.inference_mode()
def test_a_program_computes_what_the_kernels_compute(
    dtype: torch.dtype, num_threads: int, instruction_set: str
) -> None:
    forced(instruction_set, lambda: compare_with_kernels(dtype, num_threads))


def compare_with_kernels(dtype: torch.dtype, num_threads: int) -> None:
    x, weight = torch.zeros(7, 94, dtype=dtype), torch.randn(94).to(dtype)
    recording = native.new_recording(Arena())
    with recording:
        y = block(x, weight)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        for seed in range(3):
            x.copy_(torch.randn(7, 94, generator=torch.Generator().manual_seed(seed)))
            native.run(recording)
            assert torch.equal(y, block(x, weight))
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def test_rows_of_tables_are_looked_up_anew_each_time() -> None:
    table, ids = torch.randn(50, 24), torch.zeros(4, dtype=torch.int64)
    recording = native.new_recording(Arena())
    with recording:
        y = table.index_select(0, ids)
    ids.copy_(torch.tensor([3, 49, 0, 3]))
    native.run(recording)
    assert torch.equal(y, table[ids])


@torch.inference_mode()
def test_nothing_runs_while_it_is_recorded() -> None:
    x, weight = torch.randn(3, 32), torch.ones(32)
    recording = native.new_recording(Arena())
    with recording:
        assert current_recording() is recording
        y = native.rms_norm(x, weight, 1e-5)
    assert current_recording() is None
    assert not y.any()
    assert len(recording.program) == 1


@torch.inference_mode()
def test_an_operator_without_a_kernel_is_refused_by_name() -> None:
    x = torch.ones(3)
    with pytest.raises(NotRecordable, match="tanh"), native.new_recording(Arena()):
        torch.tanh(x)
    assert current_recording() is None


WEIGHT = torch.ones(96)


def make_square() -> DensePanels:
    square = empty_dense(96, 96, torch.float32)
    square.memory[:] = torch.randn(96, 96)
    return pack_(square)


def mixed(x: torch.Tensor, square: DensePanels, num_layers: int) -> torch.Tensor:
    """Kernels by token in a row, then one that needs all of them."""
    for _ in range(num_layers):
        x = dense_linear(native.rms_norm(native.rms_norm(x, WEIGHT, 1e-5) + x, WEIGHT, 1e-5), square)
    return x


@torch.inference_mode()
def test_dropped_tensors_lend_their_memory_to_later_ones() -> None:
    x, square = torch.randn(64, 96), make_square()
    needed = []
    for num_layers in (3, 50):
        recording = native.new_recording(Arena())
        with recording:
            hidden = mixed(x, square, num_layers)
        gc.collect()
        needed.append(recording.arena.num_bytes)
    assert needed[0] == needed[1]
    native.run(recording)
    assert torch.equal(hidden, mixed(x, square, 50))


@torch.inference_mode()
def test_memory_is_lent_again_only_after_the_threads_have_met() -> None:
    """Kernels by token follow each other without waiting: one thread may still read what another would write."""
    x, indices = torch.randn(64, 96), torch.zeros(2, dtype=torch.int64)
    with native.new_recording(Arena()):
        first = native.rms_norm(x, WEIGHT, 1e-5)
        address = first.data_ptr()
        del first
        second = native.rms_norm(x, WEIGHT, 1e-5)
        assert second.data_ptr() != address
        native.gather(x, indices)
        third = native.rms_norm(x, WEIGHT, 1e-5)
        assert third.data_ptr() == address


@torch.inference_mode()
def test_programs_that_run_in_turn_share_memory() -> None:
    arena, square = Arena(), make_square()
    x = torch.randn(64, 96)
    made = []
    for num_rows in range(1, 65):
        recording = native.new_recording(arena)
        with recording:
            hidden = mixed(x[:num_rows], square, 10)
        made.append((recording, hidden))
    kept = sum(hidden.numel() * 4 for _, hidden in made)
    assert arena.num_bytes < 2 * kept + 8 * x.numel() * 4
    for num_rows in (1, 33, 64, 5):
        recording, hidden = made[num_rows - 1]
        native.run(recording)
        found = hidden.clone()
        native.run(made[-1][0])
        assert torch.equal(found, made[-1][1][:num_rows])


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 2,
        lambda x: x + x[:1],
        lambda x: x * x,
        lambda x: x[:, None] * 2.0,
        lambda x: x.index_select(1, torch.zeros(1, dtype=torch.int64)),
    ],
)
@torch.inference_mode()
def test_other_forms_of_the_known_operators_are_refused(compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(4, 8)
    with pytest.raises(NotRecordable), native.new_recording(Arena()):
        compute(x)


def test_a_view_keeps_the_memory_of_its_tensor() -> None:
    arena = Arena()
    first = arena.empty((8, 16), torch.float32)
    part = first[2:3]
    address = first.data_ptr()
    del first
    assert arena.empty((8, 16), torch.float32).data_ptr() != address
    del part
    arena.settle()
    assert arena.empty((8, 16), torch.float32).data_ptr() == address
    assert arena.empty((0, 16), torch.bfloat16).shape == (0, 16)
