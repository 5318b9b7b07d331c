"""Native kernels in a row, recorded once and run many times without Python: a step graph for the CPU.

While a Recording is entered, the functions of `kernels/native.py` called on this thread are not run: they are added to a
program with the addresses of their tensors. What they write lies in the recording's arena. A tensor that the recorded code
has dropped gives its memory to a later one: the program runs in the order in which it was recorded.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

LINE = 64


class NotRecordable(Exception):
    """The recorded code used a torch operator that has no native kernel."""


class Arena:
    """Memory for what a program computes, handed out again when the tensor it was for is gone."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        self._given_back: deque[np.ndarray[Any, Any]] = deque()
        self.num_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Sizes are powers of two, so that programs for other numbers of rows find memory that fits."""
        size = max(LINE, 1 << (math.prod(shape) * dtype.itemsize - 1).bit_length())
        memory = self._free[size].pop() if self._free[size] else self._allocate(size)
        lent = memory[:]
        weakref.finalize(lent, self._given_back.append, memory)
        flat = torch.from_numpy(lent)[: math.prod(shape) * dtype.itemsize]
        return flat.view(dtype).view(shape)

    def settle(self) -> None:
        """From here on, memory given back may be handed out again: all threads have met since it was read."""
        while self._given_back:
            memory = self._given_back.popleft()
            self._free[len(memory)].append(memory)

    def _allocate(self, size: int) -> np.ndarray[Any, Any]:
        self.num_bytes += size
        memory = np.zeros(size + LINE, np.uint8)
        first = -memory.ctypes.data % LINE
        return memory[first : first + size]


class Recording(TorchDispatchMode):
    """`translated`: native functions for the few torch operators that models use beside the kernels."""

    def __init__(self, program: Any, arena: Arena, translated: dict[Any, Callable[..., torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = program
        self.arena = arena
        self._translated = translated

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch wraps `__torch_dispatch__` in its compiler, whose import takes as long as that of torch."""
        return False

    def __enter__(self) -> Self:
        self.arena.settle()
        _current.recording = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        _current.recording = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.is_view or func in NO_COMPUTATION:
            return func(*args, **(kwargs or {}))
        native = self._translated.get(func)
        if native is None or kwargs:
            raise NotRecordable(str(func))
        return native(*args)


NO_COMPUTATION = frozenset({torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default})


class _Current(threading.local):
    recording: Recording | None = None


_current = _Current()


def current_recording() -> Recording | None:
    """Of this thread."""
    return _current.recording


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for what a native kernel writes."""
    recording = _current.recording
    return torch.empty(shape, dtype=dtype) if recording is None else recording.arena.empty(shape, dtype)
