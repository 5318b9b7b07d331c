"""The native kernel gives the dense answer with every instruction set, and each row the same bits whatever is around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.paged_rows import PagedRows, Tokens, last_of_steps, make_shape, make_tokens
from tests.attention.test_torch_attention import SHAPES, assert_dense, assert_nan_stays_its_own, schedules
from tests.kernels.forced import SETS, TILES, forced
from tests.kernels.guarded import guarded_outputs

from quire.attention.backend import AttentionShape
from quire.attention.cpu_backend import CpuBackend
from quire.core.native import has_native_module
from quire.kernels import native_attention, native_module
from quire.kernels.array import Array

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

DTYPES = [torch.float32, torch.bfloat16]
KV_DTYPES = [None, torch.int8]


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    with guarded_outputs():
        yield


class ForcedBackend(CpuBackend):
    def __init__(self, instruction_set: str | None) -> None:
        self._instruction_set = instruction_set

    def attend(self, *args: Any, **options: Any) -> Array:
        return forced(self._instruction_set, super().attend, *args, **options)


def meets_codes_by_codes(
    instruction_set: str, shape: AttentionShape, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> bool:
    """Where bytes are multiplied: in tiles, and for short queries in registers. Elsewhere by whole numbers of 16 bits."""
    in_tiles = instruction_set in TILES and shape.head_dim % 64 == 0
    has_vnni = TILES.get(instruction_set, instruction_set).endswith(("_vnni", "_bf16"))
    in_registers = has_vnni and shape.head_dim <= 64
    return (in_tiles or in_registers) and dtype == torch.bfloat16 and kv_dtype == torch.int8


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    num_kv_heads = draw(st.integers(1, 4))
    return make_shape(
        num_heads=num_kv_heads * draw(st.integers(1, 9)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.integers(1, 80) | st.sampled_from([32, 64, 96, 128])),  # tiles are for these
        window=draw(st.none() | st.integers(1, 90)),
        logit_softcap=draw(st.sampled_from([None, 5.0])),
    )


@given(
    schedule=schedules(),
    shape=st.sampled_from(SHAPES) | shapes(),
    dtype=st.sampled_from(DTYPES),
    kv_dtype=st.sampled_from(KV_DTYPES),
    block_size=st.sampled_from([1, 5, 16, 32]),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_mixed_steps(schedule, shape, dtype, kv_dtype, block_size, instruction_set) -> None:  # type: ignore[no-untyped-def]
    lengths, steps = schedule
    rows = [make_tokens(shape, length, seed=r, dtype=dtype) for r, length in enumerate(lengths)]
    paged = PagedRows(ForcedBackend(instruction_set), shape, rows, block_size=block_size, kv_dtype=kv_dtype)
    by_codes = meets_codes_by_codes(instruction_set, shape, dtype, kv_dtype)
    outputs = paged.run(steps)
    assert_dense(paged, outputs, shape, by_codes=by_codes)
    again = PagedRows(ForcedBackend(instruction_set), shape, rows, block_size=block_size, kv_dtype=kv_dtype)
    for found, expected in zip(again.run(steps, last_tokens=True), last_of_steps(outputs, steps), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rows_bits_are_its_own(
    shape: AttentionShape, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """Alone and whole, or in chunks among others, over other blocks, with one thread or two."""
    probe = make_tokens(shape, 150, seed=1, dtype=dtype)
    others = [make_tokens(shape, length, seed=length, dtype=dtype) for length in (40, 77, 200)]
    (alone,) = PagedRows(ForcedBackend(instruction_set), shape, [probe], block_size=16, kv_dtype=kv_dtype).run(
        [{0: 150}]
    )
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2):
            native_module.use_num_threads(num_threads)
            for cuts in ([149, 1], [1, 64, 85], [33] * 4 + [18], [100, *[1] * 50]):
                among = PagedRows(
                    ForcedBackend(instruction_set),
                    shape,
                    [others[0], probe, *others[1:]],
                    block_size=16,
                    seed=7,
                    kv_dtype=kv_dtype,
                )
                steps = [{1: count} for count in cuts]
                steps[0] |= {0: 40, 2: 30}
                steps[-1] |= {2: 47, 3: 200}
                assert torch.equal(among.run(steps)[1], alone), (cuts, num_threads)
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, make_shape(9, 3, 64), make_shape(6, 3, 128), make_shape(8, 4, 96)], ids=str)
def test_many_decodes_have_the_bits_of_each_alone(
    shape: AttentionShape, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """Heads of one row are met together then, all of them or some; one row is of two sections, another has two tokens."""
    lengths = [1, 2, 15, 16, 17, 63, 64, 65, 100, 130, 1030, 200]
    rows = [make_tokens(shape, length, seed=length, dtype=dtype) for length in lengths]
    tokens = {r: 2 if length == 17 else 1 for r, length in enumerate(lengths)}

    def last_tokens(rows_of: list[int]) -> list[torch.Tensor]:
        paged = PagedRows(
            ForcedBackend(instruction_set), shape, [rows[r] for r in rows_of], block_size=32, kv_dtype=kv_dtype
        )
        known = {i: lengths[r] - tokens[r] for i, r in enumerate(rows_of)}
        if prompts := {i: count for i, count in known.items() if count}:
            paged.step(prompts)
        return list(paged.step({i: tokens[r] for i, r in enumerate(rows_of)}).values())

    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(2)
        together = last_tokens([*range(len(rows))])
        for r, found in enumerate(together):
            assert torch.equal(found, last_tokens([r])[0]), lengths[r]
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("block_size", "neighbours"), [(16, 4), (5, 4), (16, 1), (48, 1), (128, 4)])
def test_bits_are_those_of_rows_that_share_no_blocks(
    block_size: int,
    neighbours: int,
    shape: AttentionShape,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    instruction_set: str,
) -> None:
    """Rows after one prefix read its blocks together, those after another one theirs, four neighbours of each kind or in turn."""
    common = [make_tokens(shape, length, seed=length, dtype=dtype) for length in (200, 330)]
    prefix_of = [r // neighbours % 2 for r in range(10)]
    rows = [joined(common[prefix_of[r]], make_tokens(shape, 7 + r, seed=r, dtype=dtype)) for r in range(10)]
    apart, together = (
        PagedRows(ForcedBackend(instruction_set), shape, rows, block_size=block_size, seed=seed, kv_dtype=kv_dtype)
        for seed in (0, 3)
    )
    known = [len(row) - 7 - r for r, row in enumerate(rows)]
    apart.step(dict(enumerate(known)))
    for r in range(10):
        shared = known[r] // block_size
        if r not in (0, neighbours):
            together.tables[r][:shared] = together.tables[prefix_of[r] * neighbours][:shared]
            together.num_computed[r] = shared * block_size
        if known[r] > together.num_computed[r]:
            together.step({r: known[r] - together.num_computed[r]})
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2):
            native_module.use_num_threads(num_threads)
            apart.num_computed, together.num_computed = known.copy(), known.copy()
            for counts in ({r: 3 + r % 2 for r in range(10)}, dict.fromkeys(range(10), 1)):
                expected, found = apart.step(counts), together.step(counts)
                assert all(torch.equal(found[r], expected[r]) for r in counts)
    finally:
        native_module.use_num_threads(threads)


def joined(first: Tokens, second: Tokens) -> Tokens:
    return Tokens(
        torch.cat([first.query, second.query]),
        torch.cat([first.key, second.key]),
        torch.cat([first.value, second.value]),
    )


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slope", [0.05, 0.2, -0.2])
def test_scores_that_rise_or_fall_along_the_row(
    slope: float, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """In all by less than the 32 powers of two that a base waits for, or by more from a chunk to the one after the next."""
    shape = make_shape(num_heads=9, num_kv_heads=3, head_dim=64)
    row = make_tokens(shape, 300, seed=4, dtype=dtype)
    row.query[..., 0] = 8
    row.key[..., 0] = slope * (torch.arange(300)[:, None] - 150)
    outputs = []
    for steps in ([{0: 300}], [{0: 100}, {0: 199}, {0: 1}]):
        paged = PagedRows(ForcedBackend(instruction_set), shape, [row], block_size=16, kv_dtype=kv_dtype)
        outputs += paged.run(steps)
        by_codes = meets_codes_by_codes(instruction_set, shape, dtype, kv_dtype)
        assert_dense(paged, outputs[-1:], shape, by_codes=by_codes)
    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("window", [None, 1000, 4264 - 2048])  # which begins in one section or in the next one
@pytest.mark.parametrize("head_dim", [32, 64])
def test_many_tokens_after_many_keys_have_the_bits_of_few_at_a_time(
    head_dim: int, window: int | None, instruction_set: str
) -> None:
    """Queries of many tokens pass over all of some thousand keys before the next ones do, or where a row is split over those of a section;
    of few tokens they meet chunks together."""
    shape = make_shape(num_heads=6, num_kv_heads=2, head_dim=head_dim, window=window)
    row = make_tokens(shape, 4300, seed=5, dtype=torch.bfloat16)
    outputs = []
    for num_threads, counts in ((1, [70]), (2, [70]), (2, [10] * 7)):
        native_module.use_num_threads(num_threads)
        paged = PagedRows(ForcedBackend(instruction_set), shape, [row], block_size=16)
        paged.step({0: 4230}, last_tokens=True)
        outputs += paged.run([{0: count} for count in counts])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[1], outputs[2])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
def test_another_rows_nan_stays_its_own(kv_dtype: torch.dtype | None) -> None:
    assert_nan_stays_its_own(CpuBackend(), kv_dtype)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_later_tokens_overflow_is_nothing_to_those_before(
    value: float, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """Queries of one prompt are computed together, and those that do not see a token give it a weight of 0: not 0 times infinity."""
    for head_dim, block_size in ((8, 5), (64, 16)):
        shape = make_shape(num_heads=3, num_kv_heads=1, head_dim=head_dim)
        row = make_tokens(shape, 40, seed=6, dtype=dtype)
        row.value[37, :, 3] = value
        outputs = []
        for counts in ([40], [37, 1, 2]):
            paged = PagedRows(ForcedBackend(instruction_set), shape, [row], block_size=block_size, kv_dtype=kv_dtype)
            outputs += paged.run([{0: count} for count in counts])
        assert outputs[0][:37].isfinite().all()
        assert torch.equal(outputs[0][:37], outputs[1][:37])
        assert not outputs[0][37:].isfinite().all(-1).any()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [5, 16])
def test_codes_are_the_nearest(block_size: int, dtype: torch.dtype, instruction_set: str) -> None:
    """Blocks of 5 tokens lie as [tokens, heads, D and a scale], those of 16 by panels: the same codes and scales."""
    generator = torch.Generator().manual_seed(2)
    x = (torch.randn(2, 40, 3, 8, generator=generator) * torch.logspace(-20, 20, 40)[:, None, None]).to(dtype)
    x[0, 7, 1] = 0
    key_cache, value_cache = torch.full((2, 48 // block_size + 1, block_size, 3, 10), 77, dtype=torch.int8)
    slots = torch.randperm(48 // block_size * block_size, generator=generator)[:40]
    forced(instruction_set, native_attention.write_kv, x[0], x[1], key_cache, value_cache, slots)
    for kept, written, is_key in ((key_cache, x[0], True), (value_cache, x[1], False)):
        codes, scales = unpacked(kept, block_size, 8, is_key)
        magnitude = written.float().abs().amax(-1)
        # The next bfloat16 that is not below: so no code is above 127.
        least = (magnitude / 127).double()
        assert (scales[slots].double() >= least * (1 - 1e-7)).all()
        assert (scales[slots].double() <= least * (1 + 2**-7)).all()
        exact = written.double() / scales[slots].double().clamp(min=1e-300)[..., None]
        assert ((codes[slots].double() - exact).abs() <= 0.5 + 1e-4).all()
        untouched = torch.ones(len(codes), dtype=torch.bool)
        untouched[slots] = False
        assert (codes[untouched] == 77).all()


def unpacked(cache: torch.Tensor, block_size: int, head_dim: int, is_key: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [slots, heads, D] and their scales, float32 [slots, heads], as csrc/kv_cache.h says where they lie."""
    num_blocks, _, num_heads, width = cache.shape
    if block_size % 16:
        rows = cache.flatten(0, 1)
        return rows[..., :head_dim], rows[..., head_dim:].clone(memory_format=torch.contiguous_format).view(
            torch.bfloat16
        )[..., 0].float()
    regions = cache.view(num_blocks, num_heads, block_size * width)
    units, scales = regions[..., : block_size * head_dim], regions[..., block_size * head_dim :]
    if is_key:
        codes = units.reshape(num_blocks, num_heads, head_dim // 4, block_size, 4).permute(0, 3, 1, 2, 4)
    else:
        codes = units.reshape(num_blocks, num_heads, block_size // 4, head_dim, 4).permute(0, 2, 4, 1, 3)
    scales = scales.clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()
    return codes.reshape(-1, num_heads, head_dim), scales.permute(0, 2, 1).reshape(-1, num_heads)


def test_an_instruction_set_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels too, should it come to them."""
    monkeypatch.setattr(native_module, "emulated_sets", lambda: ("sve9",))
    shape = make_shape()
    with pytest.raises(ValueError, match="lacks the instruction set sve9"):
        PagedRows(ForcedBackend("sve9"), shape, [make_tokens(shape, 4, seed=0)]).run([{0: 4}])
