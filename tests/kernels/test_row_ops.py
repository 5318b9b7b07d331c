"""Norms, rotation, activations and the cache's writes against their torch twins; each token's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import forced

from quire.core.kv_layout import values_per_head
from quire.core.native import has_native_module
from quire.kernels import native_attention, native_module, native_rows
from quire.kernels.reference import ReferenceOps

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

REFERENCE = ReferenceOps()
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SETS = st.sampled_from(native_module.instruction_sets() or ("none",))
TOLERANCE = {torch.float32: {"rtol": 2e-6, "atol": 2e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 2**-7}}


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    num_tokens=st.integers(0, 40),
    num_heads=st.integers(1, 5),
    width=st.integers(1, 130),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_rms_norm(num_tokens: int, num_heads: int, width: int, dtype: torch.dtype, instruction_set: str) -> None:
    memory = draw(num_tokens, num_heads + 2, width, dtype=dtype)
    x, weight = memory[:, 1:-1], draw(width, dtype=dtype, seed=1)
    found = forced(instruction_set, native_rows.rms_norm, x, weight, 1e-5)
    assert found.is_contiguous()
    torch.testing.assert_close(found, REFERENCE.rms_norm(x, weight, 1e-5), **TOLERANCE[dtype])


@given(num_tokens=st.integers(0, 40), width=st.integers(1, 130), dtype=DTYPES, instruction_set=SETS)
def test_rms_norm_adds_before_it_rounds(num_tokens: int, width: int, dtype: torch.dtype, instruction_set: str) -> None:
    x, weight = draw(num_tokens, width, dtype=dtype), draw(width, dtype=dtype, seed=1)
    memory = draw(num_tokens, width + 5, dtype=dtype, seed=2)
    expected = memory.clone()
    residual = memory[:, 2:-3]
    expected[:, 2:-3] = REFERENCE.rms_norm(x, weight, 1e-5, residual)
    found = forced(instruction_set, native_rows.rms_norm, x, weight, 1e-5, residual)
    assert found.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(memory, expected, **TOLERANCE[dtype])


@given(
    num_tokens=st.integers(0, 40),
    width=st.integers(1, 200),
    mean=st.sampled_from([0.0, 50.0]),
    biased=st.booleans(),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_layer_norm(
    num_tokens: int, width: int, mean: float, biased: bool, dtype: torch.dtype, instruction_set: str
) -> None:
    """Rows lie apart, with NaN between. A large mean leaves fewer digits of float32."""
    memory = torch.full((num_tokens, width + 3), torch.nan, dtype=dtype)
    x, weight = memory[:, 2:-1], draw(width, dtype=dtype, seed=1)
    x.copy_(draw(num_tokens, width, dtype=dtype) + mean)
    bias = draw(width, dtype=dtype, seed=2) if biased else None
    found = forced(instruction_set, native_rows.layer_norm, x, weight, bias, 1e-5)
    assert found.is_contiguous()
    factor = 50 if mean and dtype == torch.float32 else 1
    limits = {name: factor * limit for name, limit in TOLERANCE[dtype].items()}
    torch.testing.assert_close(found, REFERENCE.layer_norm(x, weight, bias, 1e-5), **limits)


@given(
    num_tokens=st.integers(0, 40),
    num_heads=st.integers(1, 5),
    half=st.integers(1, 40),
    rest=st.integers(0, 9),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_rope(num_tokens: int, num_heads: int, half: int, rest: int, dtype: torch.dtype, instruction_set: str) -> None:
    memory = draw(num_tokens, num_heads + 2, 2 * half + rest, dtype=dtype)
    before, x = memory.clone(), memory[:, 1:-1]
    cos, sin = draw(num_tokens, half, dtype=dtype, seed=1), draw(num_tokens, half, dtype=dtype, seed=2)
    expected = REFERENCE.rope(x, cos, sin)
    found = forced(instruction_set, native_rows.rope_, x, cos, sin)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
    assert torch.equal(memory[:, [0, -1]], before[:, [0, -1]]), "the other heads stay as they are"


@given(
    num_tokens=st.integers(1, 40),
    width=st.integers(1, 200),
    kind=st.sampled_from(sorted(native_rows.GATES)),
    scale=st.sampled_from([1.0, 30.0]),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_gated(num_tokens: int, width: int, kind: str, scale: float, dtype: torch.dtype, instruction_set: str) -> None:
    gate, up = (draw(num_tokens, 2 * width, dtype=dtype) * scale).chunk(2, dim=-1)
    expected = REFERENCE.gated(gate, up, kind)
    found = forced(instruction_set, native_rows.gated, gate, up, kind)
    limits = {name: limit * scale**2 if name == "atol" else limit for name, limit in TOLERANCE[dtype].items()}
    torch.testing.assert_close(found, expected, **limits)


@given(
    num_tokens=st.integers(0, 40),
    width=st.integers(1, 200),
    kind=st.sampled_from(sorted(native_rows.GATES)),
    scale=st.sampled_from([1.0, 30.0]),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_activate(
    num_tokens: int, width: int, kind: str, scale: float, dtype: torch.dtype, instruction_set: str
) -> None:
    memory = torch.full((num_tokens, width + 3), torch.nan, dtype=dtype)
    x = memory[:, 2:-1]
    x.copy_(draw(num_tokens, width, dtype=dtype) * scale)
    found = forced(instruction_set, native_rows.activate, x, kind)
    assert found.is_contiguous()
    expected = torch.stack([REFERENCE.activate(row[None], kind)[0] for row in x]) if num_tokens else x
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@given(
    num_tokens=st.integers(0, 40),
    width=st.integers(1, 200),
    cap=st.sampled_from([5.0, 30.0]),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_softcap(num_tokens: int, width: int, cap: float, dtype: torch.dtype, instruction_set: str) -> None:
    memory = torch.full((num_tokens, width + 3), torch.nan, dtype=dtype)
    x = memory[:, 2:-1]
    x.copy_(draw(num_tokens, width, dtype=dtype) * 20)
    found = forced(instruction_set, native_rows.softcap, x, cap)
    assert found.is_contiguous()
    expected = (cap * torch.tanh(x.double() / cap)).to(dtype)
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("instruction_set", native_module.instruction_sets())
def test_gelu_is_exact_far_below_zero_too(instruction_set: str) -> None:
    """To a hundred-thousandth of the value itself, where 1 + erf would have lost all digits."""
    x = torch.linspace(-9, 9, 3001).unsqueeze(0)
    found = forced(instruction_set, native_rows.activate, x, "gelu").double()
    expected = x.double() * torch.special.erfc(x.double() * -(0.5**0.5)) / 2
    assert ((found - expected).abs() <= 1e-5 * expected.abs()).all()


@given(
    num_tokens=st.integers(0, 40),
    num_heads=st.integers(1, 4),
    width=st.integers(1, 70),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_write_kv(num_tokens: int, num_heads: int, width: int, dtype: torch.dtype, instruction_set: str) -> None:
    heads = draw(num_tokens, 2 * num_heads, width, dtype=dtype)
    key, value = heads[:, :num_heads], heads[:, num_heads:]
    caches = [torch.full((12, 4, num_heads, width), 7.0, dtype=dtype) for _ in range(2)]
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(num_tokens))[:num_tokens]
    expected = [cache.clone() for cache in caches]
    for cache, new in zip(expected, (key, value), strict=True):
        cache.flatten(0, 1).index_copy_(0, slots, new)
    forced(instruction_set, native_attention.write_kv, key, value, *caches, slots)
    assert all(torch.equal(found, wanted) for found, wanted in zip(caches, expected, strict=True))


@given(
    num_tokens=st.integers(0, 40),
    num_heads=st.integers(1, 5),
    num_kv_heads=st.integers(1, 3),
    half=st.integers(1, 34),
    rest=st.integers(0, 5),
    codes=st.booleans(),
    block_size=st.sampled_from([4, 16]),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_rotated_where_keys_are_written_as_one_after_the_other(
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    half: int,
    rest: int,
    codes: bool,
    block_size: int,
    dtype: torch.dtype,
    instruction_set: str,
) -> None:
    width = 2 * half + rest
    sizes = (num_heads, num_kv_heads, num_kv_heads)
    before = draw(num_tokens, sum(sizes), width, dtype=dtype)
    cos, sin = draw(num_tokens, half, dtype=dtype, seed=1), draw(num_tokens, half, dtype=dtype, seed=2)
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(num_tokens))[:num_tokens]
    shape = (48 // block_size, block_size, num_kv_heads, values_per_head(width, "int8") if codes else width)

    def run(at_once: bool) -> list[torch.Tensor]:
        heads, caches = before.clone(), [torch.zeros(shape, dtype=torch.int8 if codes else dtype) for _ in range(2)]
        query, key, value = heads.split_with_sizes(sizes, 1)
        if at_once:
            native_attention.write_kv(key, value, *caches, slots, rotated=(query, cos, sin))
        else:
            native_attention.write_kv(native_rows.rope_(key, cos, sin), value, *caches, slots)
            native_rows.rope_(query, cos, sin)
        return [query, value, *caches]

    expected, found = forced(instruction_set, run, False), forced(instruction_set, run, True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@given(
    num_tokens=st.integers(0, 40),
    width=st.integers(1, 200),
    # Not so small that products are subnormal: of these the processor's own conversion to bfloat16 makes zeros.
    factor=st.floats(-30, 30, width=32).filter(lambda factor: factor == 0 or abs(factor) > 2.0**-60),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_sums_and_products(
    num_tokens: int, width: int, factor: float, dtype: torch.dtype, instruction_set: str
) -> None:
    """To the bit: one operation in float32, rounded once. Rows lie apart, with NaN between."""
    memory = torch.full((num_tokens, 2 * width + 3), torch.nan, dtype=dtype)
    x, z = memory[:, 1 : width + 1], memory[:, width + 2 : -1]
    x.copy_(draw(num_tokens, width, dtype=dtype))
    z.copy_(draw(num_tokens, width, dtype=dtype, seed=1))
    assert torch.equal(forced(instruction_set, native_rows.add, x, z), x + z)
    assert torch.equal(forced(instruction_set, native_rows.scale, x, factor), x * factor)


@given(
    num_tokens=st.integers(0, 40),
    num_rows=st.integers(1, 9),
    width=st.integers(1, 200),
    dtype=DTYPES,
    instruction_set=SETS,
)
def test_gather(num_tokens: int, num_rows: int, width: int, dtype: torch.dtype, instruction_set: str) -> None:
    table = draw(num_rows, width, dtype=dtype)
    indices = torch.randint(num_rows, (num_tokens,), generator=torch.Generator().manual_seed(width))
    assert torch.equal(forced(instruction_set, native_rows.gather, table, indices), table[indices])
    part = table[:, width // 3 :]
    assert torch.equal(forced(instruction_set, native_rows.gather, part, indices), part[indices])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_tokens_on_several_threads_have_the_bits_of_each_alone(dtype: torch.dtype) -> None:
    x, weight = draw(300, 6, 64, dtype=dtype), draw(64, dtype=dtype, seed=1)
    cos, sin = draw(300, 32, dtype=dtype, seed=2), draw(300, 32, dtype=dtype, seed=3)
    gate, up = draw(300, 189, dtype=dtype, seed=4), draw(300, 189, dtype=dtype, seed=5)

    def everything(first: int, last: int) -> list[torch.Tensor]:
        part = slice(first, last)
        return [
            native_rows.rms_norm(x[part], weight, 1e-6),
            native_rows.layer_norm(gate[part], up[0], up[1], 1e-6),
            native_rows.rope_(x[part].clone(), cos[part], sin[part]),
            *(native_rows.gated(gate[part], up[part], kind) for kind in sorted(native_rows.GATES)),
            *(native_rows.activate(gate[part], kind) for kind in sorted(native_rows.GATES)),
            native_rows.softcap(gate[part], 3.0),
        ]

    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(2)
        together = everything(0, 300)
    finally:
        native_module.use_num_threads(threads)
    for first, last in ((0, 1), (7, 9), (150, 299)):
        for found, whole in zip(everything(first, last), together, strict=True):
            assert torch.equal(found, whole[first:last])


def test_a_value_that_is_not_a_number_stays_one() -> None:
    gate = torch.tensor([[torch.nan, -torch.inf, torch.inf, 1.0]])
    for kind in native_rows.GATES:
        for found in (native_rows.gated(gate, torch.ones(1, 4), kind), native_rows.activate(gate, kind)):
            assert found[0, 0].isnan()
            assert found[0, 2] == torch.inf
            assert found[0, 3].isfinite()
    assert native_rows.softcap(gate, 5.0).isnan().tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("instruction_set", native_module.instruction_sets())
def test_gates_far_below_zero_let_nothing_through(instruction_set: str) -> None:
    """Where e^-x is no number of float32 any more."""
    gate = torch.tensor([[-60.0, -87.0, -89.0, -127.0, -200.0, -60000.0]]).bfloat16()
    found = forced(instruction_set, native_rows.gated, gate, torch.ones_like(gate), "silu")
    assert (found.abs() < 1e-20).all()
