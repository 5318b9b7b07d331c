"""Native logits against float64, with every instruction set; each row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.core.native import has_native_module
from quire.kernels import native

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS = native.instruction_sets()
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def draw(num_rows: int, num_features: int, num_outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, num_features, generator=generator)
    return x.to(dtype), torch.randn(num_outputs, num_features, generator=generator).to(dtype)


@given(
    num_rows=st.integers(0, 40),
    num_features=st.integers(1, 200),
    num_outputs=st.integers(1, 70),
    dtype=DTYPES,
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_as_in_float64(num_rows, num_features, num_outputs, dtype, instruction_set) -> None:  # type: ignore[no-untyped-def]
    x, weight = draw(num_rows, num_features, num_outputs, dtype)
    y = native.logits(x, weight, instruction_set=instruction_set)
    assert y.dtype == torch.float32
    tolerance = torch.finfo(torch.float32).eps * 4 * num_features
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, rtol=0, atol=tolerance)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rows_bits_are_its_own(instruction_set: str, dtype: torch.dtype) -> None:
    x, weight = draw(33, 577, 1003, dtype)
    together = native.logits(x, weight, instruction_set=instruction_set)
    threads = torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            for row in (0, 2, 31, 32):
                alone = native.logits(x[row : row + 1], weight, instruction_set=instruction_set)
                assert torch.equal(alone[0], together[row])
    finally:
        torch.set_num_threads(threads)
