"""Keys are summed section by section, and the sections of a few rows side by side: the dense answer, and the same bits either way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.paged_rows import PagedRows, Tokens, make_shape, make_tokens
from tests.attention.test_cpu_attention import KV_DTYPES, ForcedBackend, joined, meets_codes_by_codes
from tests.attention.test_torch_attention import assert_dense
from tests.kernels.forced import SETS
from tests.kernels.guarded import guarded_outputs

from quire.attention.backend import AttentionShape
from quire.attention.cpu_backend import CpuBackend
from quire.core.native import has_native_module
from quire.kernels import native_module

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SECTION = 1024
KINDS = [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, torch.int8)]
SHAPES = [
    make_shape(num_heads=9, num_kv_heads=3, head_dim=64),
    make_shape(num_heads=4, num_kv_heads=1, head_dim=128, window=1500),
    make_shape(num_heads=3, num_kv_heads=3, head_dim=5, logit_softcap=5.0),
]
LENGTHS = [SECTION - 1, SECTION, SECTION + 1, 2 * SECTION, 2 * SECTION + 2]


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    with guarded_outputs():
        yield


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = native_module.thread_count()
    native_module.use_num_threads(2)
    yield
    native_module.use_num_threads(before)


def last_outputs(
    chosen: CpuBackend,
    shape: AttentionShape,
    rows: list[Tokens],
    counts: Sequence[int],
    kv_dtype: torch.dtype | None,
    seed: int = 0,
) -> tuple[PagedRows, list[torch.Tensor]]:
    """Of each row's last tokens, so many at a time, all rows together; those before have K and V only."""
    paged = PagedRows(chosen, shape, rows, block_size=16, kv_dtype=kv_dtype, seed=seed)
    paged.step({r: len(row) - sum(counts) for r, row in enumerate(rows)}, last_tokens=True)
    return paged, paged.run([dict.fromkeys(range(len(rows)), count) for count in counts])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contexts_around_sections(
    shape: AttentionShape, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """Five rows together are not split, one alone is."""
    rows = [make_tokens(shape, length, seed=length, dtype=dtype) for length in LENGTHS]
    paged, outputs = last_outputs(ForcedBackend(instruction_set), shape, rows, [2, 1], kv_dtype)
    assert_dense(paged, outputs, shape, by_codes=meets_codes_by_codes(instruction_set, shape, dtype, kv_dtype))
    for num_threads, first in ((1, 4), (2, 1), (3, 4)):
        native_module.use_num_threads(num_threads)
        for row, expected in zip(rows[first:], outputs[first:], strict=True):
            _, (alone,) = last_outputs(ForcedBackend(instruction_set), shape, [row], [1, 1, 1], kv_dtype, seed=1)
            assert torch.equal(alone, expected), (len(row), num_threads)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("end", [SECTION + 30, 2 * SECTION + 64])
def test_chunks_over_a_border(
    end: int, shape: AttentionShape, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """Tokens of one chunk see one section more than others, or begin to see one later: by tiles and in registers, split or not."""
    row = make_tokens(shape, end, seed=3, dtype=dtype)
    found = []
    for num_threads, counts in ((1, [140]), (2, [140]), (3, [33] * 4 + [8]), (2, [130, *[1] * 10])):
        native_module.use_num_threads(num_threads)
        paged, outputs = last_outputs(ForcedBackend(instruction_set), shape, [row], counts, kv_dtype)
        found += outputs
    assert_dense(paged, found[:1], shape, by_codes=meets_codes_by_codes(instruction_set, shape, dtype, kv_dtype))
    for other in found[1:]:
        assert torch.equal(other, found[0])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS, ids=str)
@pytest.mark.parametrize("common", [SECTION + 460, 2 * SECTION])
def test_rows_that_share_sections(
    common: int, dtype: torch.dtype, kv_dtype: torch.dtype | None, instruction_set: str
) -> None:
    """A prefix that ends within a section or with one, read together: the bits of rows that share no blocks."""
    shape = make_shape(num_heads=6, num_kv_heads=2, head_dim=64)
    prefix = make_tokens(shape, common, seed=9, dtype=dtype)
    rows = [joined(prefix, make_tokens(shape, 3 + 300 * r, seed=r, dtype=dtype)) for r in range(4)]
    _, apart = last_outputs(ForcedBackend(instruction_set), shape, rows, [2, 1], kv_dtype)
    for num_threads in (1, 2, 3):
        native_module.use_num_threads(num_threads)
        together = PagedRows(ForcedBackend(instruction_set), shape, rows, block_size=16, seed=3, kv_dtype=kv_dtype)
        together.step({0: len(rows[0]) - 3}, last_tokens=True)
        shared = common // 16
        for r in range(1, 4):
            together.tables[r][:shared] = together.tables[0][:shared]
            together.num_computed[r] = shared * 16
            together.step({r: len(rows[r]) - 3 - shared * 16}, last_tokens=True)
        found = together.run([dict.fromkeys(range(4), 2), dict.fromkeys(range(4), 1)])
        assert all(map(torch.equal, found, apart)), num_threads


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(75, 2600), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 24), min_size=1, max_size=3),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    head_dim=st.integers(1, 40) | st.sampled_from([32, 64, 128]),
    window=st.none() | st.integers(1, 1600),
    logit_softcap=st.sampled_from([None, 5.0]),
    kind=st.sampled_from(KINDS),
    instruction_set=st.sampled_from(SETS or ("none",)),
    num_threads=st.integers(1, 4),
)
def test_any_rows(  # type: ignore[no-untyped-def]
    lengths, counts, heads, head_dim, window, logit_softcap, kind, instruction_set, num_threads
) -> None:
    (num_kv_heads, of_each), (dtype, kv_dtype) = heads, kind
    shape = make_shape(num_kv_heads * of_each, num_kv_heads, head_dim, window, logit_softcap)
    rows = [make_tokens(shape, length, seed=r, dtype=dtype) for r, length in enumerate(lengths)]
    native_module.use_num_threads(num_threads)
    paged, outputs = last_outputs(ForcedBackend(instruction_set), shape, rows, counts, kv_dtype)
    assert_dense(paged, outputs, shape, by_codes=meets_codes_by_codes(instruction_set, shape, dtype, kv_dtype))
    native_module.use_num_threads(2)
    for row, expected in zip(rows, outputs, strict=True):
        _, (alone,) = last_outputs(ForcedBackend(instruction_set), shape, [row], [sum(counts)], kv_dtype, seed=1)
        assert torch.equal(alone, expected)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
def test_with_too_little_memory_for_sums_fewer_are_split(
    kv_dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = make_shape(num_heads=9, num_kv_heads=3, head_dim=64)
    row = make_tokens(shape, 2500, seed=1, dtype=torch.bfloat16)
    _, (expected,) = last_outputs(CpuBackend(), shape, [row], [1], kv_dtype)
    for num_floats in (0, 96 * 9, 96 * 20, 96 * 27):  # for no head, one, two and all
        monkeypatch.setattr(native_module.module(), "attention_scratch", lambda n=num_floats, **_: n)
        _, (found,) = last_outputs(CpuBackend(), shape, [row], [1], kv_dtype)
        assert torch.equal(found, expected), num_floats


def test_what_is_no_number_in_one_section_stays_and_stays_its_own() -> None:
    shape = make_shape(num_heads=2, num_kv_heads=1, head_dim=16)
    rows = [make_tokens(shape, length, seed=length) for length in (2100, 2200)]
    rows[0].value[5] = torch.nan
    rows[0].query[-1] = torch.nan
    for together in (rows, rows[:1]):
        _, (found, *others) = last_outputs(CpuBackend(), shape, together, [1], None)
        assert found.isnan().all()
        assert all(other.isfinite().all() for other in others)


def num_jobs(
    context_lens: list[int],
    num_threads: int = 2,
    block_tables: Sequence[Sequence[int]] = (),
    block_size: int = 16,
    heads_together: bool = False,
    **kwargs: int,
) -> int:
    """Of rows of one token each, with 3 KV heads."""
    sizes = {"num_heads": 9, "num_kv_heads": 3, "window": 0} | kwargs
    num_floats = native_module.module().attention_scratch(
        num_queries=len(context_lens) * sizes["num_heads"],
        head_dim=1,
        window=sizes["window"],
        max_context=max(context_lens),
        num_threads=num_threads,
    )
    jobs: int = native_module.module().num_attention_jobs(
        query_starts=[*range(len(context_lens) + 1)],
        context_lens=context_lens,
        block_tables=block_tables,
        block_size=block_size,
        scratch_floats=num_floats,
        num_threads=num_threads,
        heads_together=heads_together,
        **sizes,
    )
    return jobs


def test_what_is_split() -> None:
    assert native_module.module().ATTENTION_SECTION == SECTION
    assert num_jobs([SECTION]) == 3
    assert num_jobs([SECTION + 1]) == num_jobs([2 * SECTION]) == 6
    assert num_jobs([2 * SECTION + 1]) == 9
    assert num_jobs([8000]) == 24
    assert num_jobs([8000], num_threads=1) == 3
    assert num_jobs([8000], num_threads=16) == 24
    assert num_jobs([8000], num_heads=4, num_kv_heads=1) == 8
    assert num_jobs([8000], window=SECTION) == 6
    assert num_jobs([3000] * 32) == 96, "nobody waits for the last of so many"
    assert num_jobs([8000, *[100] * 20]) == 24 + 60, "a long row among short ones is split alone"
    assert num_jobs([2_000_000], num_heads=64, num_kv_heads=8) == 8, "there is no memory for so many sums"


def test_heads_are_one_job_where_many_rows_have_one_token() -> None:
    assert num_jobs([300] * 8, heads_together=True) == 8
    assert num_jobs([300] * 8, heads_together=False) == 24
    assert num_jobs([300] * 7, heads_together=True) == 21, "of so few jobs one member would wait for the other"
    assert num_jobs([8000, *[100] * 20], heads_together=True) == 8 + 20
    assert num_jobs([300] * 8, num_heads=64, num_kv_heads=8, heads_together=True) == 8
    assert num_jobs([300] * 8, num_heads=72, num_kv_heads=8, heads_together=True) == 8 * 2, "64 queries are met at once"


@pytest.mark.parametrize("block_size", [16, 24, 32, 64])
def test_rows_that_share_a_prefix_are_read_together_wherever_they_stand(block_size: int) -> None:
    """Four rows over two prefixes of 192 tokens, two at a time: that leaves work for both threads."""

    def tables(*prefixes: int) -> list[list[int]]:
        shared = 192 // block_size
        return [[100 * prefix + i for i in range(shared)] + [1000 + row] for row, prefix in enumerate(prefixes)]

    def jobs(*prefixes: int, **kwargs: int) -> int:
        return num_jobs([193] * len(prefixes), block_tables=tables(*prefixes), block_size=block_size, **kwargs)

    assert jobs(1, 1, 2, 2) == jobs(1, 2, 1, 2) == jobs(2, 1, 1, 2) == 2 * 3
    assert jobs(1, 2, 3, 4) == 4 * 3
    assert jobs(1, 2, 3, 1) == 3 * 3
    assert jobs(1, 1, 1, 1) == 2 * 3
    assert jobs(1, 1, 1, 1, num_threads=1) == 3
    assert jobs(1, 2, 1, 2, window=64) == 4 * 3
    assert num_jobs([63] * 4, block_tables=tables(1, 1, 1, 1), block_size=block_size) == 4 * 3, "less than a chunk"
