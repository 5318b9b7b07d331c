"""What is recorded runs later, with the numbers that are there then, and gives the bits of the eager kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.forced import forced

from quire.core.native import has_native_module
from quire.kernels import native_module, native_rows
from quire.kernels.array import Array, Arrays, empty_array
from quire.kernels.dtype import DType
from quire.kernels.fresh_memory import CHUNK, LINE, LargePages
from quire.kernels.native_linear import DensePanels, empty_dense, linear, pack_
from quire.kernels.recording import Arena, Lent, NotRecordable, Recording, current_recording

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


def draw(shape: tuple[int, ...], dtype: DType = DType.FLOAT32, seed: int = 0) -> Array:
    drawn = empty_array(shape, dtype)
    Arrays().copy(drawn, np.random.default_rng(seed).standard_normal(shape, np.float32), "float32")
    return drawn


def filled(shape: tuple[int, ...], value: float, dtype: DType = DType.FLOAT32) -> Array:
    array = empty_array(shape, dtype)
    array[...] = value
    return array


def indices(*values: int) -> Array:
    return Array(np.array(values, np.int64), DType.INT64)


def equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one.stored, other.stored)


def block(x: Array, weight: Array) -> Array:
    """Norms, views, sums, a product with a number and a gate, as layers use them."""
    hidden = native_rows.rms_norm(x, weight, 1e-5) * 0.25
    for _ in range(5):
        gate, up = hidden.chunk(2, dim=-1)
        gated = native_rows.gated(gate, up, "silu")
        hidden = native_rows.rms_norm(hidden + x, weight, 1e-5)
        hidden = hidden.view(len(x), 2, -1).flatten(1) + x
    return native_rows.gated(gated, gated, "relu")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("instruction_set", native_module.instruction_sets())
def test_a_program_computes_what_the_kernels_compute(dtype: DType, num_threads: int, instruction_set: str) -> None:
    forced(instruction_set, compare_with_kernels, dtype, num_threads)


def compare_with_kernels(dtype: DType, num_threads: int) -> None:
    x, weight = filled((7, 94), 0.0, dtype), draw((94,), dtype)
    recording = native_module.new_recording(Arena())
    with recording:
        y = block(x, weight)
    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(num_threads)
        for seed in range(3):
            x[...] = draw((7, 94), dtype, seed)
            native_module.run(recording)
            assert equal(y, block(x, weight))
    finally:
        native_module.use_num_threads(threads)


def test_rows_of_tables_are_looked_up_anew_each_time() -> None:
    table, ids = draw((50, 24)), indices(0, 0, 0, 0)
    recording = native_module.new_recording(Arena())
    with recording:
        y = table.index_select(0, ids)
    ids[...] = indices(3, 49, 0, 3)
    native_module.run(recording)
    assert equal(y, table[ids])


def test_nothing_runs_while_it_is_recorded() -> None:
    x, weight = draw((3, 32)), filled((32,), 1.0)
    recording = native_module.new_recording(Arena())
    with recording:
        assert current_recording() is recording
        y = native_rows.rms_norm(x, weight, 1e-5)
    assert current_recording() is None
    assert not y.stored.any()
    assert len(recording.program) == 1


WEIGHT = filled((96,), 1.0)


def make_square() -> DensePanels:
    square = empty_dense(96, 96, DType.FLOAT32)
    square.memory[:] = draw((96, 96))
    return pack_(square)


def mixed(x: Array, square: DensePanels, num_layers: int) -> Array:
    """Kernels by token in a row, then one that needs all of them."""
    for _ in range(num_layers):
        x = linear(native_rows.rms_norm(native_rows.rms_norm(x, WEIGHT, 1e-5) + x, WEIGHT, 1e-5), square)
    return x


def test_dropped_tensors_lend_their_memory_to_later_ones() -> None:
    x, square = draw((64, 96)), make_square()
    needed = []
    for num_layers in (3, 50):
        recording = native_module.new_recording(Arena())
        with recording:
            hidden = mixed(x, square, num_layers)
        gc.collect()
        needed.append(recording.arena.num_bytes)
    assert needed[0] == needed[1]
    native_module.run(recording)
    assert equal(hidden, mixed(x, square, 50))


def test_an_arena_in_large_pages_lends_in_the_same_way() -> None:
    x, square = draw((64, 96)), make_square()
    recording = native_module.new_recording(Arena(LargePages()))
    with recording:
        hidden = mixed(x, square, 3)
    native_module.run(recording)
    assert hidden.data_ptr() % LINE == 0
    assert equal(hidden, mixed(x, square, 3))


def test_memory_is_lent_again_only_after_the_threads_have_met() -> None:
    """Kernels by token follow each other without waiting: one thread may still read what another would write."""
    x, rows = draw((64, 96)), indices(0, 0)
    with native_module.new_recording(Arena()):
        first = native_rows.rms_norm(x, WEIGHT, 1e-5)
        address = first.data_ptr()
        del first
        second = native_rows.rms_norm(x, WEIGHT, 1e-5)
        assert second.data_ptr() != address
        native_rows.gather(x, rows)
        third = native_rows.rms_norm(x, WEIGHT, 1e-5)
        assert third.data_ptr() == address


@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_is_recorded_for_as_many_tokens_as_rows_is_of_one_token_a_row(num_threads: int) -> None:
    x, square, last = draw((64, 96)), make_square(), indices(*range(8))
    recording = native_module.new_recording(Arena(), num_rows=8)
    with recording:
        every = mixed(x, square, 3)
        hidden = mixed(every.view(64, 2, 48).index_select(0, last).flatten(1), square, 3)
    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(num_threads)
        for places in ([0], [3, 11], [0, 5, 6, 7, 20, 33, 61, 63]):
            num_tokens, num_rows = places[-1] + 1, len(places)
            every.stored[:], hidden.stored[:] = np.nan, np.nan
            last.stored[:num_rows] = places
            native_module.run(recording, (num_tokens, num_rows))
            assert equal(every[:num_tokens], mixed(x[:num_tokens], square, 3))
            assert equal(hidden[:num_rows], mixed(every[np.array(places)], square, 3))
            assert np.isnan(every.stored[num_tokens:]).all()
            assert np.isnan(hidden.stored[num_rows:]).all()
    finally:
        native_module.use_num_threads(threads)


def test_programs_that_run_in_turn_lie_on_top_of_each_other() -> None:
    arena, alone, square = Arena(), Arena(), make_square()
    x = draw((64, 96))

    def record(num_rows: int, arena: Arena) -> tuple[Recording, Array]:
        recording = native_module.new_recording(arena)
        with recording:
            hidden = mixed(x[:num_rows], square, 10)
        # Without its owner: it is read before another program runs.
        return recording, Array(hidden.stored, hidden.dtype)

    made = {num_rows: record(num_rows, arena) for num_rows in range(1, 65)}
    record(64, alone)
    assert arena.num_bytes == alone.num_bytes
    for num_rows in (1, 33, 64, 5):
        recording, hidden = made[num_rows]
        native_module.run(recording)
        assert equal(hidden, mixed(x[:num_rows], square, 10))


def overlap(one: Lent, other: Lent) -> bool:
    return np.shares_memory(one.numbers, other.numbers)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 100), st.booleans()), min_size=1, max_size=60),
    st.booleans(),
)
def test_what_is_lent_belongs_to_one_array_at_a_time(steps: list[tuple[int, int, bool]], large: bool) -> None:
    """Each step lends a size, then gives back an earlier one, and perhaps all threads meet."""
    arena, held, given_back = Arena(LargePages() if large else None), [], []
    for size, which, meets in steps:
        lent = arena.lend(size)
        assert len(lent.numbers) >= size
        assert lent.numbers.ctypes.data % LINE == 0
        assert not any(overlap(lent, other) for other in held)
        # What was given back since threads last met may still be read.
        assert not any(np.shares_memory(lent.numbers, numbers) for numbers in given_back)
        held.append(lent)
        del lent
        if which < len(held):
            given_back.append(held[which].numbers)
            del held[which]
        if meets:
            arena.settle()
            given_back.clear()
    most = arena.num_bytes
    held.clear()
    arena.settle()
    whole = arena.lend(most)
    assert arena.num_bytes == most, "gaps side by side are one"
    assert len(whole.numbers) == most


def test_more_than_a_piece_of_memory_is_lent_too() -> None:
    arena = Arena()
    first, large = arena.lend(100), arena.lend(CHUNK + 1)
    assert not overlap(first, large)
    assert not overlap(arena.lend(100), large)


def test_gaps_of_two_pieces_stay_apart() -> None:
    """One that ends where, in the next piece, another begins."""
    arena = Arena()
    first, _rest = arena.lend(LINE), arena.lend(CHUNK - LINE)
    held, second, _more = arena.lend(LINE), arena.lend(LINE), arena.lend(CHUNK - 2 * LINE)
    del first, second
    arena.settle()
    assert not overlap(arena.lend(2 * LINE), held)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[np.array([0, 2])],
        lambda x: x.__setitem__(0, 2.0),
        lambda x: x[:, ::2].contiguous(),
    ],
)
def test_what_numpy_would_do_at_once_is_refused(compute: Callable[[Array], object]) -> None:
    x = filled((4, 8), 1.0)
    with pytest.raises(NotRecordable), native_module.new_recording(Arena()):
        compute(x)


def test_a_view_keeps_the_memory_of_its_array() -> None:
    arena = Arena()
    with native_module.new_recording(arena):
        first = empty_array((8, 16), DType.FLOAT32)
        part = first[2:3].view(16)
        address = first.data_ptr()
        del first
        arena.settle()
        assert empty_array((8, 16), DType.FLOAT32).data_ptr() != address
        del part
        arena.settle()
        assert address in {empty_array((8, 16), DType.FLOAT32).data_ptr() for _ in range(2)}
        assert empty_array((0, 16), DType.BFLOAT16).shape == (0, 16)
