"""The native kernels' own tensors: numpy's arrays, with bfloat16, made without torch and with its names.

While a program is recorded (recording.py) their memory comes from the recording's arena, and arithmetic is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.kernels.dtype import OF_NUMPY, DType
from quire.kernels.fresh_memory import LINE, fresh_memory
from quire.kernels.native_rows import add, gather, scale
from quire.kernels.recording import NotRecordable, current_recording
from quire.kernels.tensor import Numbers, Plan, Result


class Array:
    """`stored` holds the numbers, of a bfloat16 its bits. `owner` is kept for as long as the memory is in use."""

    __slots__ = ("dtype", "owner", "stored")

    def __init__(self, stored: Numbers, dtype: DType, owner: object = None) -> None:
        self.stored = stored
        self.dtype = dtype
        self.owner = owner

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {list(self.shape)})"

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def data_ptr(self) -> int:
        address: int = self.stored.__array_interface__["data"][0]
        return address

    def stride(self) -> tuple[int, ...]:
        """In elements."""
        size = self.stored.itemsize
        return tuple(stride // size for stride in self.stored.strides)

    def is_contiguous(self) -> bool:
        return self.stored.flags.c_contiguous

    def contiguous(self) -> Array:
        if self.is_contiguous():
            return self
        if current_recording() is not None:
            raise NotRecordable("a copy of what does not lie together")
        return Array(np.ascontiguousarray(self.stored), self.dtype)

    def view(self, *shape: int) -> Array:
        """In the same memory."""
        stored = self.stored.reshape(shape)
        assert stored.size == 0 or np.may_share_memory(stored, self.stored), "its parts do not lie together"
        return self._part(stored)

    def flatten(self, start_dim: int) -> Array:
        return self.view(*self.shape[:start_dim], math.prod(self.shape[start_dim:]))

    def unsqueeze(self, dim: int) -> Array:
        return self._part(np.expand_dims(self.stored, dim))

    def expand(self, *shape: int) -> Array:
        """Repeated in the same memory; to be read."""
        return self._part(np.broadcast_to(self.stored, shape))

    def chunk(self, chunks: int, dim: int) -> list[Array]:
        size = -(-self.shape[dim] // chunks)
        return self.split_with_sizes([size] * (chunks - 1) + [self.shape[dim] - size * (chunks - 1)], dim)

    def split_with_sizes(self, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
        before = (slice(None),) * (dim % self.stored.ndim)
        bounds = pairwise(accumulate(split_sizes, initial=0))
        return [self._part(self.stored[(*before, slice(first, last))]) for first, last in bounds]

    def index_select(self, dim: int, index: Array) -> Array:
        """Rows of a table, or tokens of [T, ...]."""
        assert dim == 0
        return gather(self.flatten(1), index).view(len(index), *self.shape[1:])

    def new_empty(self, size: Sequence[int]) -> Array:
        return empty_array(tuple(size), self.dtype)

    def __getitem__(self, key: Any) -> Array:
        """By numbers and slices a view; by an array of numbers a copy."""
        if isinstance(key, Array | np.ndarray):
            if current_recording() is not None:
                raise NotRecordable("rows[numbers], unlike index_select,")
            return Array(self.stored[key.stored if isinstance(key, Array) else key], self.dtype)
        return self._part(self.stored[key])

    def __setitem__(self, key: Any, value: Array | float) -> None:
        if current_recording() is not None:
            raise NotRecordable("an assignment")
        if isinstance(value, Array):
            assert value.dtype == self.dtype
            self.stored[key] = value.stored
        else:
            self.stored[key] = round_to(np.float32(value), self.dtype)

    def __add__(self, other: Array) -> Array:
        return add(self, other)

    def __mul__(self, factor: float) -> Array:
        return scale(self, factor)

    def _part(self, stored: Numbers) -> Array:
        return Array(stored, self.dtype, self.owner)


def empty_array(shape: tuple[int, ...], dtype: DType) -> Array:
    """On a cache line; what it holds is undefined. While a program is recorded, it is of the recording's arena."""
    num_bytes = math.prod(shape) * dtype.itemsize
    recording = current_recording()
    if recording is None:
        return Array(_on_a_line(np.empty(num_bytes + LINE, np.uint8), num_bytes, shape, dtype), dtype)
    memory = recording.arena.lend(num_bytes)
    return Array(memory.numbers[:num_bytes].view(dtype.stored).reshape(shape), dtype, memory)


def int64_zeros(*shape: int) -> Array:
    """Numbers that are filled in later, for recorded programs in the same place each time."""
    return Array(np.zeros(shape, np.int64), DType.INT64)


def _on_a_line(memory: npt.NDArray[np.uint8], num_bytes: int, shape: tuple[int, ...], dtype: DType) -> Numbers:
    """What begins on the first cache line of memory that is a line too long."""
    first = -int(memory.__array_interface__["data"][0]) % LINE
    return memory[first : first + num_bytes].view(dtype.stored).reshape(shape)


def round_to(numbers: Any, dtype: DType) -> Any:
    """float32, float16 as what `dtype` is stored as; to nearest, ties to even. Not for NaN."""
    if dtype != DType.BFLOAT16:
        return numbers.astype(dtype.stored)
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


def widened(stored: Numbers, dtype: str) -> npt.NDArray[np.float32]:
    """float32 of what `dtype` is stored as."""
    if dtype != DType.BFLOAT16:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Arrays:
    """The Tensors of the native kernels."""

    def dtype(self, name: str) -> DType:
        return DType(name)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return empty_array(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DType, *, touched: bool = False) -> Array:
        num_values = math.prod(shape)
        memory = fresh_memory(num_values * dtype.itemsize, touched=touched)
        return Array(np.frombuffer(memory, dtype.stored, num_values).reshape(shape), dtype)

    def of(self, numbers: Numbers) -> Array:
        return Array(numbers, OF_NUMPY[numbers.dtype])

    def copy(self, destination: Array, numbers: Numbers, dtype: str) -> None:
        if dtype == destination.dtype:
            destination.stored[...] = numbers
        else:
            destination.stored[...] = round_to(widened(numbers, dtype), destination.dtype)

    def numbers(self, tensor: Array) -> npt.NDArray[np.float32]:
        return widened(tensor.stored, tensor.dtype)

    def computing(self, step: Callable[[Plan], Result]) -> Callable[[Plan], Result]:
        return step
