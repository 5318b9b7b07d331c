"""What layers need of a tensor, so that torch's and the native kernels' own (`Array`) both fit; and how such are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy.typing as npt

from quire.core.arrays import Float32Array

Numbers = npt.NDArray[Any]
Plan = TypeVar("Plan")
Result = TypeVar("Result")


class Tensor(Protocol):
    """The methods mean what torch's mean."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any:
        """torch's own, or a DType."""

    def data_ptr(self) -> int: ...

    def stride(self) -> Sequence[int]: ...

    def is_contiguous(self) -> bool: ...

    def contiguous(self) -> Self: ...

    def view(self, *shape: int) -> Self: ...

    def flatten(self, start_dim: int) -> Self: ...

    def unsqueeze(self, dim: int) -> Self: ...

    def expand(self, *shape: int) -> Self: ...

    def chunk(self, chunks: int, dim: int) -> Sequence[Self]: ...

    def split_with_sizes(self, split_sizes: Sequence[int], dim: int) -> Sequence[Self]: ...

    def index_select(self, dim: int, index: Any) -> Self: ...

    def new_empty(self, size: Sequence[int]) -> Self:
        """Of the same dtype."""

    def __getitem__(self, key: Any) -> Self: ...

    def __add__(self, other: Any) -> Self: ...

    def __mul__(self, other: Any) -> Self: ...


@dataclass(frozen=True, slots=True)
class Normalized:
    """Rows x [T, D] as their RMS norm makes them, x / rms(x) * weight (Ops.rms_norm): by whoever reads them. weight: float32 [D]."""

    x: Any
    weight: Any
    eps: float


class Tensors(Protocol):
    """Makes tensors of one kind. `dtype` is the kind's own."""

    def dtype(self, name: str) -> Any:
        """Of float32, bfloat16, float16, int8."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """What it holds is undefined."""

    def zeros(self, shape: tuple[int, ...], dtype: Any, *, touched: bool = False) -> Any:
        """The system hands their memory out as it is written; all of it now if `touched`."""

    def of(self, numbers: Numbers) -> Any:
        """In the same memory: float32, int64."""

    def copy(self, destination: Any, numbers: Numbers, dtype: str) -> None:
        """Rounded to the destination's dtype. `numbers` of its shape are of the named dtype: bfloat16 as uint16."""

    def numbers(self, tensor: Any) -> Float32Array:
        """As float32; in the same memory where that is its dtype."""

    def computing(self, step: Callable[[Plan], Result]) -> Callable[[Plan], Result]:
        """What to call instead of `step`, which computes."""
