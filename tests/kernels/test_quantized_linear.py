"""Weights of few bits, each type and instruction set, against float64 products of what the type stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import (
    SETS,
    TILES,
    assert_added_and_rounded_once,
    assert_let_through_and_rounded_once,
    forced,
    rows_of,
)
from tests.kernels.torch_arrays import as_torch
from tests.twins.block_codes import rows_of_blocks
from tests.twins.panels import fill_panels, layout_of
from tests.twins.rotation import rotated, rotated_back
from tests.twins.rounding import round_rows

from quire.checkpoint.gguf.block_codes import CODE_TYPES, BlockRows
from quire.checkpoint.gguf.block_types import BLOCK_TYPES
from quire.core.native import has_native_module
from quire.core.quantization import LARGEST_ROTATED_GROUP, ROUNDINGS, Rounding
from quire.kernels import native_module, native_rows
from quire.kernels.dtype import DType, dtype_of
from quire.kernels.native_linear import linear, linear_gated, weight_rows
from quire.kernels.panels import (
    PANEL,
    PanelLayout,
    QuantizedPanels,
    can_follow,
    empty_panels,
    join_panels,
    layout_of_blocks,
    pack_blocks,
)
from quire.kernels.tensor import Normalized

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS_OF_ROWS = native_module.instruction_sets()
TYPES = {block_type.name: block_type for block_type in BLOCK_TYPES.values() if block_type.name in CODE_TYPES}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


ROUNDED = ["int8", "int8-g64", "int8-g128", "int4-g64", "int4-symmetric", "int4-symmetric-g128"]
"""Which have groups of other sizes."""
NUM_VALUES = {name: block_type.num_values for name, block_type in TYPES.items()} | dict.fromkeys(ROUNDED, 128)
PIECE = 32
"""Neighbours one of which may have a second code."""


def make_weight(name: str, num_outputs: int, num_blocks: int, seed: int = 0) -> tuple[QuantizedPanels, torch.Tensor]:
    """As panels and as floats."""
    rng = np.random.default_rng(seed)
    if name in ROUNDED:
        return make_rounded(ROUNDINGS[name], rng.normal(0, 0.5, (num_outputs, num_blocks * 128)).astype(np.float32))
    return make_stored(name, num_outputs, num_blocks, rng)


def make_rounded(
    rounding: Rounding, floats: np.ndarray, *, inputs_rotated: bool = False
) -> tuple[QuantizedPanels, torch.Tensor]:
    size = rounding.group_of(floats.shape[1])
    assert size is not None
    rows = round_rows(floats, rounding, size, inputs_rotated=inputs_rotated)
    weight = empty_panels(layout_of(rows, len(floats)))
    fill_panels(weight.panels.stored, weight.layout, rows)
    codes = rows.codes.reshape(len(floats), -1, size).astype(np.float32) - rows.zero
    values = codes * rows.scale.astype(np.float32)[..., None]
    if rows.minimum is not None:
        values += rows.minimum.astype(np.float32)[..., None]
    values = values.reshape(floats.shape)
    return weight, torch.from_numpy(rotated_back(values) if weight.layout.rotates_inputs else values)


def make_stored(
    name: str, num_outputs: int, num_blocks: int, rng: np.random.Generator, byte: int | None = None
) -> tuple[QuantizedPanels, torch.Tensor]:
    """Random bits, or the same `byte` everywhere, with scales of a sensible size."""
    block_type = TYPES[name]
    raw = rng.integers(0, 256, (num_outputs * num_blocks, block_type.num_bytes), dtype=np.uint8)
    if byte is not None:
        raw[:] = byte
    blocks = raw.view(block_type.layout).reshape(-1)
    for field in {"d", "m", "dmin"} & set(block_type.layout.names or ()):
        blocks[field] = rng.uniform(-0.01, 0.01, len(blocks)).astype(np.float16)
    floats = torch.from_numpy(block_type.dequantize(blocks).reshape(num_outputs, -1))
    rows = rows_of_blocks(name, blocks.reshape(num_outputs, num_blocks))
    weight = empty_panels(layout_of(rows, num_outputs))
    fill_panels(weight.panels.stored, weight.layout, rows)
    return weight, floats


def scales(x: torch.Tensor, layout: PanelLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations in groups, float64, and the scale of each group: the largest of each piece may have a second code."""
    if layout.rotated:
        rows = rotated(x.double().numpy()) if layout.rotates_inputs else x.double().numpy()
        groups = torch.from_numpy(rows)[:, None]
        return groups, groups.abs().amax(2, keepdim=True) / 127
    groups = x.double().view(len(x), -1, layout.group_size)
    sizes = groups.abs().view(*groups.shape[:2], -1, min(layout.group_size, PIECE))
    largest, place = sizes.max(-1, keepdim=True)
    rest = sizes.scatter(-1, place, 0.0).amax(-1, keepdim=True)
    apart = torch.maximum(rest / 127, largest / (127 * 128))
    times = 3.0 if sizes.shape[2] == 1 else 2.0
    return groups, torch.where(largest > times * rest, apart, largest / 127).amax(2)


def rounded(x: torch.Tensor, layout: PanelLayout) -> torch.Tensor:
    """The torch twin of what the kernel does to activations, in float64."""
    groups, scale = scales(x, layout)
    back = torch.where(scale > 0, (groups / scale).round() * scale, 0.0).view(x.shape)
    return torch.from_numpy(rotated_back(back.numpy())) if layout.rotates_inputs else back


def half_way(x: torch.Tensor, layout: PanelLayout) -> torch.Tensor:
    """How many values of each row are, but for float32's rounding, half-way between two codes: [T, 1]."""
    groups, scale = scales(x, layout)
    off = (groups.abs() / scale % 1 - 0.5).abs()
    # Codes go up to 127 * 128, with float32's precision.
    return (off < 4e-3).sum((1, 2), dtype=torch.float64)[:, None]


def assert_close(
    found: torch.Tensor,
    x: torch.Tensor,
    weight: QuantizedPanels,
    floats: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    expected = rounded(x, weight.layout) @ floats.double().T
    if bias is not None:
        expected += bias.double()
    # A value half-way between two codes may go either way: the kernel divides in float32.
    step = x.double().abs().amax() / 127 * floats.double().abs().amax()
    limit = TOLERANCE[found.dtype] * expected.abs().amax() + step * half_way(x, weight.layout)
    assert ((found.double() - expected).abs() <= limit).all()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", NUM_VALUES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_products_are_those_of_the_stored_numbers(name: str, instruction_set: str, dtype: torch.dtype) -> None:
    weight, floats = make_weight(name, 72, 512 // NUM_VALUES[name])
    x = torch.randn(11, 512, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = forced(instruction_set, linear, x, weight)
    assert found.dtype == dtype
    assert_close(found, x, weight, floats)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_the_largest_codes_of_one_sign_do_not_overflow(name: str, instruction_set: str, byte: int) -> None:
    """Whole groups of weights and of activations as large as they can be: sums of few bits are the first to overflow."""
    weight, floats = make_stored(name, 40, 512 // NUM_VALUES[name], np.random.default_rng(0), byte)
    x = torch.ones(5, 512)
    x[1] = -1.0
    x[2, ::2] = -1.0
    assert_close(forced(instruction_set, linear, x, weight), x, weight, floats)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_of_the_longest_rotated_rows_do_not_overflow(sign: int, instruction_set: str) -> None:
    num_inputs = LARGEST_ROTATED_GROUP
    even = rotated_back(np.ones((1, num_inputs), np.float32))  # becomes ones again
    weight, floats = make_rounded(ROUNDINGS["int8"], np.repeat(sign * even, 24, 0))
    assert weight.layout.rotated
    x = torch.from_numpy(np.repeat(even, 19, 0))
    x[1] = -x[0]
    assert_close(forced(instruction_set, linear, x, weight), x, weight, floats)
    assert_close(forced(instruction_set, linear, x[:1], weight), x[:1], weight, floats)


@given(
    name=st.sampled_from(sorted(NUM_VALUES)),
    instruction_set=st.sampled_from(SETS_OF_ROWS or [""]),
    num_outputs=st.integers(1, 70),
    num_blocks=st.integers(1, 24),
    num_indices=st.integers(0, 20),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_rows_come_back_as_the_type_defines_them(
    name: str, instruction_set: str, num_outputs: int, num_blocks: int, num_indices: int, dtype: torch.dtype
) -> None:
    """Bit for bit in float32, where they are not rotated back: nothing is rounded on the way into panels."""
    weight, floats = make_weight(name, num_outputs, num_blocks)
    indices = torch.randint(num_outputs, (num_indices,), generator=torch.Generator().manual_seed(num_blocks))
    found = forced(instruction_set, weight_rows, weight, indices, dtype_of(dtype))
    expected = floats[indices].to(dtype)
    if weight.layout.rotated:
        assert torch.allclose(as_torch(found), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    else:
        assert torch.equal(as_torch(found), expected)


@pytest.mark.parametrize("instruction_set", SETS_OF_ROWS)
@pytest.mark.parametrize("num_inputs", [352, 576, 2816, 4864, 5632])
def test_rotated_rows_come_back_whatever_their_width(num_inputs: int, instruction_set: str) -> None:
    """Those with windows (tests/twins/rotation.py) are rotated back in another order."""
    generator = np.random.default_rng(num_inputs)
    weight, floats = make_rounded(ROUNDINGS["int8"], generator.normal(0, 0.5, (20, num_inputs)).astype(np.float32))
    indices = torch.tensor([3, 19, 0])
    found = forced(instruction_set, weight_rows, weight, indices, DType.FLOAT32)
    assert torch.allclose(as_torch(found), floats[indices], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", NUM_VALUES)
def test_a_rows_bits_do_not_depend_on_the_batch_or_the_threads(name: str, instruction_set: str) -> None:
    weight, _ = make_weight(name, 80, 512 // NUM_VALUES[name])
    x = torch.randn(70, 512, generator=torch.Generator().manual_seed(2))
    together = forced(instruction_set, linear, x, weight)
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2, 3):
            native_module.use_num_threads(num_threads)
            for first, last in ((0, 1), (5, 6), (3, 12), (20, 53), (0, 70)):
                alone = forced(instruction_set, linear, x[first:last], weight)
                assert torch.equal(alone, together[first:last])
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize(
    "changes",
    [
        {"bits": 5},
        {"group_size": 16},
        {"group_size": 48},
        {"groups_per_block": 3},
        {"rotated": True},
        {"inputs_rotated": True},
        {"rotated": True, "group_size": 96, "bits": 4},
        {"rotated": True, "group_size": 96, "has_minimum": True},
        {"num_inputs": 16384 + 32, "group_size": 16384 + 32},
        {"num_inputs": 65536 + 32, "group_size": 65536 + 32, "rotated": True},
    ],
    ids=str,
)
def test_kinds_that_no_kernel_was_compiled_for_are_refused(changes: dict[str, Any]) -> None:
    """And not multiplied by that of another kind."""
    weight, _ = make_weight("Q8_0", 16, 3)
    other = empty_panels(replace(weight.layout, **changes))
    with pytest.raises(ValueError, match="No kernel multiplies weights of this kind"):
        linear(torch.ones(1, other.layout.num_inputs), other)


@pytest.mark.parametrize("tiles", [name for name in TILES if name in SETS])
@pytest.mark.parametrize("output_dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NUM_VALUES)
def test_tiles_give_the_bits_of_few_rows(name: str, output_dtype: torch.dtype, tiles: str) -> None:
    """Alone, in a few and in tiles that are full and not; with one or several outliers in a row, and in a group."""
    num_outputs, num_inputs = 57, 768
    weight, _ = make_weight(name, num_outputs, num_inputs // NUM_VALUES[name])
    generator = torch.Generator().manual_seed(7)
    bias = torch.randn(num_outputs, generator=generator)
    for x_dtype in TOLERANCE:
        x = torch.randn(70, num_inputs, generator=generator)
        times = 2 + 98 * torch.rand(x.shape, generator=generator)
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.02, x * times, x)
        x[::3] = x[::3].clamp(-1, 1)  # none at all there
        x = x.to(x_dtype)

        def multiply(rows: torch.Tensor, instruction_set: str) -> torch.Tensor:
            output = torch.empty(len(rows), num_outputs, dtype=output_dtype)
            return forced(instruction_set, linear, rows, weight, bias, output)

        expected = multiply(x, TILES[tiles])
        for num_rows in (1, 4, 5, 11, 16, 17, 33, 70):
            assert torch.equal(multiply(x[:num_rows], tiles), expected[:num_rows])
            assert torch.equal(multiply(x[-num_rows:], tiles), expected[-num_rows:])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("tiles", [name for name in TILES if name in SETS])
@pytest.mark.parametrize("name", ["int8", "int8-g128", "Q8_0", "int4-symmetric-g128"])
def test_many_rows_without_a_bias_have_the_bits_of_few_rows(name: str, tiles: str, num_threads: int) -> None:
    """Stored row by row between products, each member's own rows at a time; side by side and gated. 47 outliers in a row at most."""
    num_outputs, num_inputs = 96, 1536
    weight, _ = make_weight(name, num_outputs, num_inputs // NUM_VALUES[name])
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(301, num_inputs, generator=generator)
    often = torch.rand(301, 1, generator=generator) ** 4 * 0.04
    x = torch.where(torch.rand(x.shape, generator=generator) < often, x * 40, x).to(torch.bfloat16)
    expected = forced(TILES[tiles], linear, x, weight)
    gated = torch.cat([forced(TILES[tiles], linear_gated, row, weight, "silu") for row in x.split(1)])
    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(num_threads)
        for num_rows in (19, 32, 33, 100, 128, 241, 301):
            assert torch.equal(forced(tiles, linear, x[:num_rows], weight), expected[:num_rows])
            assert torch.equal(forced(tiles, linear_gated, x[-num_rows:], weight, "silu"), gated[-num_rows:])
    finally:
        native_module.use_num_threads(threads)


@given(
    name=st.sampled_from(sorted(NUM_VALUES)),
    instruction_set=st.sampled_from(SETS or [""]),
    num_rows=st.integers(0, 70),
    num_outputs=st.one_of(st.integers(1, 70), st.sampled_from([16, 64, 96])),
    dtype=st.sampled_from(list(TOLERANCE)),
    has_bias=st.booleans(),
)
def test_results_are_added_to_what_is_there_and_rounded_once(
    name: str, instruction_set: str, num_rows: int, num_outputs: int, dtype: torch.dtype, has_bias: bool
) -> None:
    weight, _ = make_weight(name, num_outputs, 512 // NUM_VALUES[name])
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 512, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator) if has_bias else None
    memory = torch.randn(num_rows, num_outputs + 32, generator=generator).to(dtype)

    def multiply(output: torch.Tensor, adds: bool) -> None:
        forced(instruction_set, linear, x, weight, bias, output, adds=adds)

    assert_added_and_rounded_once(multiply, memory, 16)


@given(
    name=st.sampled_from(sorted(NUM_VALUES)),
    instruction_set=st.sampled_from(SETS or [""]),
    num_rows=st.integers(0, 70),
    width=st.one_of(st.sampled_from([16, 32, 48, 80]), st.integers(1, 70)),
    dtype=st.sampled_from(list(TOLERANCE)),
    kind=st.sampled_from(sorted(native_rows.GATES)),
)
def test_gated_at_once_as_one_after_the_other(
    name: str, instruction_set: str, num_rows: int, width: int, dtype: torch.dtype, kind: str
) -> None:
    weight, _ = make_weight(name, 2 * width, 1)
    x = torch.randn(num_rows, weight.layout.num_inputs, generator=torch.Generator().manual_seed(num_rows)).to(dtype)

    def multiply(output_dtype: torch.dtype) -> torch.Tensor:
        output = torch.empty(num_rows, 2 * width, dtype=output_dtype)
        return forced(instruction_set, linear, x, weight, output=output)

    found = forced(instruction_set, linear_gated, x, weight, kind)
    assert_let_through_and_rounded_once(found, multiply, kind, rows_of(instruction_set))


@given(
    name=st.sampled_from(sorted(NUM_VALUES)),
    instruction_set=st.sampled_from(SETS or [""]),
    num_rows=st.integers(0, 40),
    num_outputs=st.integers(1, 70),
    num_blocks=st.integers(1, 3),
    dtypes=st.tuples(*[st.sampled_from(list(TOLERANCE))] * 2),
    bias_dtype=st.sampled_from([None, *TOLERANCE]),
    seed=st.integers(0, 99),
)
def test_any_shape_writes_its_outputs_and_nothing_else(
    name: str,
    instruction_set: str,
    num_rows: int,
    num_outputs: int,
    num_blocks: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    bias_dtype: torch.dtype | None,
    seed: int,
) -> None:
    """Inputs and outputs lie in rows with NaN between."""
    weight, floats = make_weight(name, num_outputs, num_blocks, seed)
    generator = torch.Generator().manual_seed(seed)
    num_inputs = weight.layout.num_inputs
    x = torch.full((num_rows, num_inputs + 2), torch.nan, dtype=dtypes[0])[:, 1:-1]
    x.copy_(torch.randn(num_rows, num_inputs, generator=generator))
    bias = None if bias_dtype is None else torch.randn(num_outputs, generator=generator).to(bias_dtype)
    memory = torch.full((num_rows, num_outputs + 2), torch.nan, dtype=dtypes[1])
    output = memory[:, 1:-1]
    forced(instruction_set, linear, x, weight, bias, output)
    assert memory[:, [0, -1]].isnan().all()
    if num_rows:
        assert_close(output, x, weight, floats, bias)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_stay_in_their_row_and_are_seen(bad: float) -> None:
    weight, _ = make_weight("Q4_1", 32, 4)
    x = torch.randn(5, 128)
    good = linear(x, weight)
    x[2, 70] = bad
    found = linear(x, weight)
    assert not found[2].isfinite().any()
    kept = [0, 1, 3, 4]
    assert torch.equal(found[kept], good[kept])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "int8-g64", "int4-g64"])
def test_an_outlier_costs_its_neighbours_nothing(name: str, instruction_set: str) -> None:
    weight, floats = make_weight(name, 48, 256 // NUM_VALUES[name])
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(3))
    at = torch.arange(9) * 29 + 5
    calm = forced(instruction_set, linear, x, weight).double() - x.double() @ floats.double().T
    x[torch.arange(9), at] = torch.tensor([100.0, -100.0, 40.0] * 3)
    wild = forced(instruction_set, linear, x, weight).double() - x.double() @ floats.double().T
    assert wild.std() < 2 * calm.std()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_inputs", [32, 96, 160, 224, 352, 576, 640, 1536, 2016, 2816, 3072, 4864, 18944])
def test_rows_of_any_width_are_rotated_as_their_weights(num_inputs: int, instruction_set: str) -> None:
    """Stages of 3 to 7 values, one, two and four of them, and windows of 11, 19 and 22 parts of a row, and of 74."""
    generator = np.random.default_rng(num_inputs)
    weight, floats = make_rounded(ROUNDINGS["int8"], generator.normal(0, 0.5, (40, num_inputs)).astype(np.float32))
    assert weight.layout.rotated
    x = torch.randn(19, num_inputs, generator=torch.Generator().manual_seed(4))
    assert_close(forced(instruction_set, linear, x, weight), x, weight, floats)
    assert_close(forced(instruction_set, linear, x[:1], weight), x[:1], weight, floats)


@pytest.mark.parametrize("x_dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_inputs", [32, 64, 96, 576, 1536, 4096])
def test_rows_that_come_rotated_are_used_as_they_are(
    num_inputs: int, instruction_set: str, x_dtype: torch.dtype
) -> None:
    """In tiles and in few rows, and alone: the same bits."""
    floats = np.random.default_rng(num_inputs).normal(0, 0.5, (40, num_inputs)).astype(np.float32)
    weight, floats = make_rounded(ROUNDINGS["int8"], floats, inputs_rotated=True)
    assert weight.layout.inputs_rotated
    x = torch.randn(41, num_inputs, generator=torch.Generator().manual_seed(4)).to(x_dtype)
    x[3] = 0
    x[5, num_inputs // 2] = 300.0
    found = forced(instruction_set, linear, x, weight, output=torch.empty(41, 40))
    assert_close(found, x, weight, floats)
    for rows in (slice(7), slice(3, 4), slice(5, 6), slice(40, 41)):
        few = forced(instruction_set, linear, x[rows], weight, output=torch.empty(len(x[rows]), 40))
        assert torch.equal(few, found[rows])
    assert not found[3].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("inputs_rotated", [False, True])
@pytest.mark.parametrize("num_inputs", [32, 352, 576])
def test_rotated_rows_that_are_not_finite_are_seen(
    num_inputs: int, inputs_rotated: bool, instruction_set: str, bad: float
) -> None:
    floats = np.random.default_rng(num_inputs).normal(0, 0.5, (40, num_inputs)).astype(np.float32)
    weight, _ = make_rounded(ROUNDINGS["int8"], floats, inputs_rotated=inputs_rotated)
    x = torch.randn(6, num_inputs, generator=torch.Generator().manual_seed(5))
    good = forced(instruction_set, linear, x, weight)
    for place in (0, 17, num_inputs - 1):
        spoilt = x.clone()
        spoilt[2, place] = bad
        found = forced(instruction_set, linear, spoilt, weight)
        assert not found[2].isfinite().any()
        kept = [0, 1, 3, 4, 5]
        assert torch.equal(found[kept], good[kept])


@given(
    instruction_set=st.sampled_from(SETS or [""]),
    num_inputs=st.sampled_from([32, 160, 352, 576]),
    num_rows=st.integers(0, 40),
    dtype=st.sampled_from(list(TOLERANCE)),
    eps=st.sampled_from([1e-5, 0.5]),
    gated=st.booleans(),
)
def test_rows_normalized_as_they_are_read_are_those_of_the_norm(
    instruction_set: str, num_inputs: int, num_rows: int, dtype: torch.dtype, eps: float, gated: bool
) -> None:
    """But for the last bits: integers are made before a row's scale is known. Nothing else is rounded on the way."""
    generator = torch.Generator().manual_seed(num_rows)
    weight, _ = make_rounded(ROUNDINGS["int8"], np.random.default_rng(1).standard_normal((64, num_inputs), np.float32))
    x = (torch.randn(num_rows, num_inputs, generator=generator) * 3).to(dtype)
    by = torch.randn(num_inputs, generator=generator)
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)

    def multiply(rows: torch.Tensor | Normalized, output_dtype: torch.dtype = torch.float32) -> torch.Tensor:
        output = torch.empty(num_rows, 64, dtype=output_dtype)
        return forced(instruction_set, linear, rows, weight, output=output)

    normalized = Normalized(x, by, eps)
    torch.testing.assert_close(multiply(normalized), multiply(x.float() * by) * scale, rtol=1e-5, atol=1e-5)
    if gated:
        gates = forced(instruction_set, linear_gated, normalized, weight, "silu")
        assert_let_through_and_rounded_once(
            gates, lambda output_dtype: multiply(normalized, output_dtype), "silu", rows_of(instruction_set)
        )


@pytest.mark.parametrize("instruction_set", SETS)
def test_rotated_rows_share_an_outlier(instruction_set: str) -> None:
    """With one scale for a row that is not rotated, steps would be 60 times as large."""
    weight, floats = make_weight("int8", 48, 18)  # 2,304 inputs
    x = torch.randn(9, 2304, generator=torch.Generator().manual_seed(3))
    calm = forced(instruction_set, linear, x, weight).double() - x.double() @ floats.double().T
    x[torch.arange(9), torch.arange(9) * 29 + 5] = torch.tensor([240.0, -240.0, 120.0] * 3)
    wild = forced(instruction_set, linear, x, weight).double() - x.double() @ floats.double().T
    assert wild.std() < 12 * calm.std()


@pytest.mark.parametrize("instruction_set", SETS)
def test_a_code_just_above_the_largest_is_a_second_one(instruction_set: str) -> None:
    """Half a step above 127 would round to 128, which is no int8."""
    weight, floats = make_weight("int8-g64", 16, 1)
    x = torch.zeros(1, 128)
    x[0, [3, 4]] = 127.0  # two: so the scale is 1
    x[0, 40] = 127.5
    assert_close(forced(instruction_set, linear, x, weight), x, weight, floats)


@pytest.mark.parametrize("value", [0.0, 1e-38], ids=["zeros", "values whose inverse is infinite"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_of_next_to_nothing_gives_the_bias(dtype: torch.dtype, value: float) -> None:
    weight, _ = make_weight("Q8_0", 32, 4)
    bias = torch.randn(32).to(dtype)
    assert torch.equal(linear(torch.full((1, 128), value, dtype=dtype), weight, bias)[0], bias)


def test_joined_panels_are_one_weight() -> None:
    first, _ = make_weight("Q4_1", 2 * PANEL, 4)
    second, _ = make_weight("Q4_1", 21, 4, seed=1)
    assert can_follow(first.layout, second.layout)
    joined = join_panels([first, second])
    x = torch.randn(3, 128)
    apart = torch.cat([linear(x, weight) for weight in (first, second)], 1)
    assert torch.equal(linear(x, joined), apart)
    assert not can_follow(second.layout, first.layout), "it ends within a panel"
    assert not can_follow(first.layout, make_weight("Q4_0", 16, 4)[0].layout)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", TYPES)
def test_blocks_of_a_file_become_the_same_panels(name: str, num_threads: int) -> None:
    """In any order of rows; numpy's way is the twin."""
    rng = np.random.default_rng(3)
    block_type, num_rows, num_blocks = TYPES[name], 70, 3
    # Any bits but infinite scales: the last panel is not whole.
    raw = rng.integers(0, 256, (num_rows * num_blocks, block_type.num_bytes), dtype=np.uint8)
    blocks = raw.view(block_type.layout).reshape(-1)
    for field in {"d", "m", "dmin"} & set(block_type.layout.names or ()):
        blocks[field] = rng.uniform(-1, 1, len(blocks)).astype(np.float16)
    order = rng.permutation(num_rows)
    stored = BlockRows(name, num_blocks * block_type.num_values, raw.reshape(num_rows, -1), order)
    rows = rows_of_blocks(name, blocks.reshape(num_rows, num_blocks)[order])
    expected, found = empty_panels(layout_of(rows, num_rows)), empty_panels(layout_of_blocks(stored))
    expected.panels.stored.fill(0)
    found.panels.stored.fill(0)
    fill_panels(expected.panels.stored, expected.layout, rows)
    before = native_module.thread_count()
    native_module.use_num_threads(num_threads)
    try:
        assert pack_blocks(found, stored)
    finally:
        native_module.use_num_threads(before)
    assert found.layout == expected.layout
    assert np.array_equal(found.panels.stored, expected.panels.stored)
    blocks["d"][100] = np.inf
    assert not pack_blocks(found, stored)
