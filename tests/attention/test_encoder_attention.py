"""The native kernel for whole texts gives the reference's answer, and a text the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.paged_rows import make_shape
from tests.kernels.forced import forced
from tests.kernels.guarded import guarded_outputs

from quire.attention.backend import AttentionShape, LayerKVCache
from quire.attention.cpu_encoder import CpuEncoderBackend
from quire.attention.encoder import ReferenceEncoderBackend
from quire.core.native import has_native_module
from quire.kernels import native_module
from quire.kernels.torch_tensors import TorchTensors
from quire.worker.encode_worker import pack

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS = native_module.instruction_sets()
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    with guarded_outputs():
        yield


def projected(lengths: list[int], shape: AttentionShape, dtype: torch.dtype) -> torch.Tensor:
    """q, k and v of each token side by side, as their linear layer leaves them."""
    generator = torch.Generator().manual_seed(sum(lengths))
    size = (sum(lengths), shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
    return torch.randn(size, generator=generator).to(dtype)


def attend(
    backend: CpuEncoderBackend | ReferenceEncoderBackend,
    heads: torch.Tensor,
    lengths: list[int],
    shape: AttentionShape,
    num_layers: int = 1,
) -> torch.Tensor:
    batch = pack([[0] * length for length in lengths], TorchTensors())
    query, key, value = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], 1)
    for _ in range(num_layers):
        found = backend.attend(query, key, value, LayerKVCache(None, None), shape, batch)
    return found


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5) | st.just([1, 64, 65, 200, 16]),
    num_heads=st.integers(1, 6),
    head_dim=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_texts_of_any_length(
    lengths: list[int], num_heads: int, head_dim: int, dtype: torch.dtype, instruction_set: str
) -> None:
    shape = make_shape(num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim)
    heads = projected(lengths, shape, dtype)
    found = forced(instruction_set, attend, CpuEncoderBackend(), heads, lengths, shape)
    expected = attend(ReferenceEncoderBackend(), heads, lengths, shape)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("instruction_set", SETS)
def test_a_texts_bits_are_its_own(instruction_set: str, dtype: torch.dtype) -> None:
    """Alone or among others, with one thread or two, in the first layer of a step or in a later one."""
    lengths, shape = [40, 1, 130, 64, 17], make_shape(num_heads=4, num_kv_heads=4, head_dim=24)
    heads = projected(lengths, shape, dtype)
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2):
            native_module.use_num_threads(num_threads)
            together = forced(instruction_set, attend, CpuEncoderBackend(), heads, lengths, shape, num_layers=2)
            for length, (first, last) in zip(lengths, pairwise([0, *accumulate(lengths)]), strict=True):
                part = heads[first:last]
                alone = forced(instruction_set, lambda p=part, n=length: attend(CpuEncoderBackend(), p, [n], shape))
                assert torch.equal(alone, together[first:last]), (length, num_threads)
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("instruction_set", SETS)
def test_a_text_of_several_sections(instruction_set: str, dtype: torch.dtype) -> None:
    lengths, shape = [1100, 30], make_shape(num_heads=2, num_kv_heads=2, head_dim=24)
    heads = projected(lengths, shape, dtype)
    expected = attend(ReferenceEncoderBackend(), heads, lengths, shape)
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2):
            native_module.use_num_threads(num_threads)
            found = forced(instruction_set, attend, CpuEncoderBackend(), heads, lengths, shape)
            torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            alone = forced(instruction_set, attend, CpuEncoderBackend(), heads[:1100], lengths[:1], shape)
            assert torch.equal(alone, found[:1100])
    finally:
        native_module.use_num_threads(threads)


def test_another_texts_nan_stays_its_own() -> None:
    lengths, shape = [20, 30, 40], make_shape(num_heads=2, num_kv_heads=2, head_dim=16)
    heads = projected(lengths, shape, torch.float32)
    heads[20:50] = torch.nan
    found = attend(CpuEncoderBackend(), heads, lengths, shape)
    assert found[:20].isfinite().all()
    assert found[20:50].isnan().all()
    assert found[50:].isfinite().all()
