"""The most likely tokens by a sketch of the table: those of all its logits, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import SETS, forced, rows_of
from tests.twins.panels import fill_panels, layout_of
from tests.twins.rounding import round_rows

from quire.core.native import has_native_module
from quire.core.quantization import ROUNDINGS
from quire.kernels import native_module, native_sketch
from quire.kernels.array import Array, round_to, widened
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels, empty_dense, linear, pack_, weight_rows
from quire.kernels.native_sketch import FINE, Sketch, can_sketch, most_likely_by_sketch
from quire.kernels.native_steps import most_likely
from quire.kernels.panels import PANEL, QuantizedPanels, empty_panels
from quire.kernels.recording import Arena
from quire.quantization.panels import PanelsTable
from quire.quantization.sketch import sketch_in_parts

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

FINE_PART = 16.0
"""As csrc/sketch.h says it."""
KINDS = ["float32", "bfloat16", "int8", "int8-g64", "int4-g64", "int4-symmetric"]


def make_table(kind: str, values: np.ndarray) -> PanelsTable:
    if kind in ROUNDINGS:
        size = ROUNDINGS[kind].group_of(values.shape[1])
        assert size is not None
        rows = round_rows(values, ROUNDINGS[kind], size)
        weight = empty_panels(layout_of(rows, len(values)))
        fill_panels(weight.panels.stored, weight.layout, rows)
        return PanelsTable(weight, DType.FLOAT32)
    dense = empty_dense(*values.shape, DType(kind))
    dense.memory.stored[: len(values), : values.shape[1]] = round_to(values, dense.dtype)
    return PanelsTable(pack_(dense), dense.dtype)


def make_sketch(table: PanelsTable) -> Sketch:
    *unfinished, sketch = sketch_in_parts(table.weight)
    assert unfinished.count(None) == len(unfinished)
    assert sketch is not None
    return sketch


def activations(table: PanelsTable, values: np.ndarray) -> Array:
    dtype = table.weight.dtype if isinstance(table.weight, DensePanels) else DType.BFLOAT16
    return Array(round_to(values.astype(np.float32), dtype), dtype)


def all_logits(x: Array, table: PanelsTable, instruction_set: str | None = None) -> Array:
    output = Array(np.empty((len(x), table.weight.num_outputs), np.float32), DType.FLOAT32)
    return forced(instruction_set, linear, x, table.weight, output=output)


def values_like_a_models(rng: np.random.Generator, num_rows: int, width: int) -> np.ndarray:
    """A few columns are far larger than the others."""
    columns = np.exp(rng.normal(0, 0.3, width))
    columns[rng.choice(width, 5, replace=False)] *= 8
    return (rng.normal(0, 1, (num_rows, width)) * columns).astype(np.float32)


def check(table: PanelsTable, sketch: Sketch, x: Array, instruction_set: str | None = None) -> int:
    """How many panels were multiplied."""
    token_ids, largest = most_likely(all_logits(x, table, instruction_set))
    found, its_logit, panels = forced(instruction_set, most_likely_by_sketch, x, table.weight, sketch)
    assert found.stored.tolist() == token_ids.stored.tolist()
    np.testing.assert_array_equal(its_logit.stored.view(np.int32), largest.stored.view(np.int32))
    count = int(panels.stored[0])
    chosen = panels.stored[1 : 1 + count].tolist()
    assert chosen == sorted(set(chosen))
    return count


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [1000, 4099])
def test_the_most_likely_are_those_of_all_logits(kind: str, instruction_set: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    table = make_table(kind, values_like_a_models(rng, vocab_size, 192))
    sketch = make_sketch(table)
    for num_rows in (1, 2, 4):
        check(table, sketch, activations(table, values_like_a_models(rng, num_rows, 192)), instruction_set)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_the_most_likely_is_not_multiplied(kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = values_like_a_models(rng, 8000, 256)
    table = make_table(kind, rows)
    x = activations(table, rows[[4321]])
    assert check(table, make_sketch(table), x) < 5


def table_rows(table: PanelsTable, sketch: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """Of the table, and of the sketch in the table's order; float64."""
    every = Array(np.arange(sketch.weight.layout.num_outputs), DType.INT64)
    rows = table.rows(every)
    sketched = weight_rows(sketch.weight, every, DType.FLOAT32).stored.astype(np.float64)
    together = np.zeros((len(every), rows.shape[1]))
    np.add.at(together, (slice(None), sketch.columns.stored), sketched)
    return widened(rows.stored, rows.dtype).astype(np.float64), together


@pytest.mark.parametrize("instruction_set", native_module.instruction_sets())
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_a_sketch_says_what_it_lacks(kind: str, instruction_set: str) -> None:
    table = make_table(kind, values_like_a_models(np.random.default_rng(2), 300, 128))
    sketch = forced(instruction_set, make_sketch, table)
    rows, sketched = table_rows(table, sketch)
    lack = rows - sketched
    fine = sketch.columns.stored[-FINE:]
    lack[:, fine] *= FINE_PART
    norms, sizes = np.linalg.norm(lack, axis=1), np.linalg.norm(rows, axis=1)
    assert (sketch.lacks.stored >= norms).all()
    assert (sketch.lacks.stored <= 1.001 * norms).all()
    assert (sketch.sizes.stored >= sizes).all()
    assert (sketch.sizes.stored <= 1.001 * sizes).all()
    coarse = np.delete(rows - sketched, fine, axis=1)
    assert np.linalg.norm(coarse) < 0.1 * np.linalg.norm(np.delete(rows, fine, axis=1))
    assert np.linalg.norm((rows - sketched)[:, fine]) < 0.01 * np.linalg.norm(rows[:, fine])


def apart_and_bounds(
    x: Array, table: PanelsTable, sketch: Sketch, instruction_set: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[rows, tokens] each: how far logits are from their estimates; how far for what the sketch lacks, and for the activations."""
    ordered, bounds = forced(rows_of(instruction_set), native_sketch._ordered, x, table.weight, sketch)
    estimates = forced(instruction_set, linear, ordered, sketch.weight).stored.astype(np.float64)
    apart = np.abs(all_logits(x, table, instruction_set).stored - estimates)
    of_sketch, of_rows = bounds.stored.astype(np.float64).T[..., None]
    return apart, sketch.lacks.stored * of_sketch, sketch.sizes.stored * of_rows


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([64, 192, 352, 576]),
    instruction_set=st.sampled_from(SETS or ("none",)),
    table_dtype=st.sampled_from([DType.FLOAT32, DType.BFLOAT16]),
)
def test_no_logit_is_further_from_its_estimate_than_the_bound(
    kind: str, seed: int, width: int, instruction_set: str, table_dtype: DType
) -> None:
    rng = np.random.default_rng(seed)
    table = make_table(kind, values_like_a_models(rng, 200, width))
    if isinstance(table.weight, QuantizedPanels):
        table = PanelsTable(table.weight, table_dtype)
    sketch = make_sketch(table)
    x = activations(table, values_like_a_models(rng, 3, width))
    apart, of_lacks, of_rows = apart_and_bounds(x, table, sketch, instruction_set)
    assert (apart <= of_lacks + of_rows).all()


def codes_and_whole_numbers(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Weights whose groups all have one scale, and activations: a sketch has both as they are."""
    codes = np.where(rng.random((200, 576)) < 0.5, -8, rng.integers(-7, 8, (200, 576)))
    scales = rng.uniform(0.01, 0.3, (200, 1)).astype(np.float16)
    x = np.where(rng.random((3, 576)) < 0.5, 127, rng.integers(-127, 128, (3, 576)))
    return codes.astype(np.float32) * scales, x


@pytest.mark.parametrize("instruction_set", SETS)
def test_where_a_sketch_lacks_nothing_the_bound_is_that_of_roundings(instruction_set: str) -> None:
    rows, x = codes_and_whole_numbers(np.random.default_rng(8))
    table = make_table("float32", rows)
    sketch = make_sketch(table)
    assert sketch.lacks.stored.max() < 1e-12
    apart, _, of_rows = apart_and_bounds(activations(table, x), table, sketch, instruction_set)
    assert 0 < apart.max() < 1e-5 * np.abs(x @ rows.T).max()
    assert (apart <= of_rows).all()


@pytest.mark.parametrize("instruction_set", SETS)
def test_what_a_sketch_lacks_in_fine_columns_alone_is_bounded(instruction_set: str) -> None:
    rng = np.random.default_rng(9)
    rows, x = codes_and_whole_numbers(rng)
    fine = np.sort(rng.choice(576, FINE, replace=False))
    rows[:, fine] = rng.normal(0, 30, (200, FINE))
    x[:, np.delete(np.arange(576), fine)] = 0
    table = make_table("float32", rows)
    sketch = make_sketch(table)
    assert sorted(sketch.columns.stored[-FINE:]) == fine.tolist()
    apart, of_lacks, of_rows = apart_and_bounds(activations(table, x), table, sketch, instruction_set)
    assert (apart <= of_lacks + of_rows).all()
    assert (apart > of_rows).mean() > 0.9
    assert (apart / of_lacks).max() > 0.4


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.integers(1, 400),
    width=st.sampled_from([64, 128, 192, 352]),
    scale=st.sampled_from([1e-30, 1e-22, 1e-6, 1.0, 1e4, 1e25]),
    repeats=st.integers(1, 3),
    num_rows=st.integers(1, 4),
)
def test_any_table_even_one_with_equal_rows(
    kind: str, seed: int, vocab_size: int, width: int, scale: float, repeats: int, num_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.tile(values_like_a_models(rng, -(-vocab_size // repeats), width), (repeats, 1))[:vocab_size]
    table = make_table(kind, rows * np.float32(scale if kind in ("float32", "bfloat16") else 1))
    x = values_like_a_models(rng, num_rows, width) * rng.choice([0.0, 1e-24, 1e-3, 1.0, 30.0], (num_rows, 1))
    check(table, make_sketch(table), activations(table, x))


@given(
    kind=st.sampled_from(KINDS),
    bad=st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 3e38]), min_size=1, max_size=3),
    places=st.lists(st.integers(0, 127), min_size=3, max_size=3),
)
def test_values_that_are_not_finite_are_seen_as_in_all_logits(kind: str, bad: list[float], places: list[int]) -> None:
    rng = np.random.default_rng(3)
    table = make_table(kind, values_like_a_models(rng, 200, 128))
    values = values_like_a_models(rng, 2, 128)
    values[1, places[: len(bad)]] = bad
    dtype = table.weight.dtype if isinstance(table.weight, DensePanels) else DType.FLOAT32
    bits = values.view(np.uint32) >> 16 if dtype == DType.BFLOAT16 else values
    x = Array(bits.astype(dtype.stored), dtype)
    token_ids, largest = most_likely(all_logits(x, table))
    found, its_logit, _ = most_likely_by_sketch(x, table.weight, make_sketch(table))
    assert found.stored.tolist() == token_ids.stored.tolist()
    np.testing.assert_array_equal(its_logit.stored, largest.stored)


@pytest.mark.parametrize("weights", [[np.nan], [np.inf, -np.inf]])
def test_a_weight_that_is_not_finite_is_seen_too(weights: list[float]) -> None:
    rng = np.random.default_rng(4)
    rows = values_like_a_models(rng, 100, 64)
    rows[7, : len(weights)] = weights
    table = make_table("float32", rows)
    x = activations(table, values_like_a_models(rng, 2, 64))
    token_ids, largest = most_likely(all_logits(x, table))
    found, its_logit, _ = most_likely_by_sketch(x, table.weight, make_sketch(table))
    assert found.stored.tolist() == token_ids.stored.tolist()
    np.testing.assert_array_equal(its_logit.stored, largest.stored)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_other_rows_change_nothing(kind: str) -> None:
    rng = np.random.default_rng(5)
    table = make_table(kind, values_like_a_models(rng, 5000, 128))
    x = activations(table, values_like_a_models(rng, 4, 128))
    results, before = [], native_module.thread_count()
    for num_threads in (1, 2, 3):
        native_module.use_num_threads(num_threads)
        try:
            sketch = make_sketch(table)
            together = most_likely_by_sketch(x, table.weight, sketch)
            alone = [most_likely_by_sketch(x[i : i + 1], table.weight, sketch) for i in range(4)]
        finally:
            native_module.use_num_threads(before)
        results.append((together[0].stored.tolist(), together[1].stored.tolist(), sketch.lacks.stored.tolist()))
        assert [int(ids.stored[0]) for ids, _, _ in alone] == together[0].stored.tolist()
        assert [float(logits.stored[0]) for _, logits, _ in alone] == together[1].stored.tolist()
    assert results[0] == results[1] == results[2]


def test_recorded_it_searches_for_as_many_rows_as_there_are() -> None:
    rng = np.random.default_rng(6)
    table = make_table("bfloat16", values_like_a_models(rng, 3000, 128))
    sketch = make_sketch(table)
    x = activations(table, np.zeros((4, 128)))
    recording = native_module.new_recording(Arena())
    with recording:
        found, _, panels = most_likely_by_sketch(x, table.weight, sketch)
    for num_rows in (3, 1, 4):
        x.stored[:] = activations(table, values_like_a_models(rng, 4, 128)).stored
        native_module.run(recording, (num_rows, num_rows))
        expected, _ = most_likely(all_logits(x[:num_rows], table))
        assert found.stored[:num_rows].tolist() == expected.stored.tolist()
        assert num_rows <= panels.stored[0] <= -(-3000 // PANEL)


def test_inputs_that_are_not_whole_groups_have_no_sketch() -> None:
    assert [width for width in (16, 32, 48, 64, 100, 576) if can_sketch(width)] == [64, 576]
