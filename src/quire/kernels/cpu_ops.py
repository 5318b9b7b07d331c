"""Native kernels. For a product with a weight that has none, torch's operator, and torch is imported with the first of them.

Native attention is in attention/cpu_backend.py, native linear layers are in quantization/.
"""

from __future__ import annotations

from functools import cached_property
from typing import cast

from quire.core.places import load_place
from quire.kernels import native, native_rows
from quire.kernels.array import Array, Arrays
from quire.kernels.ops import Ops
from quire.kernels.recording import NotRecordable, current_recording
from quire.kernels.tensor import Tensors

TORCH_ON_ARRAYS = "quire.kernels.torch_on_arrays:TorchOnArrays"


class CpuOps:
    name = "cpu"

    def __init__(self) -> None:
        self.tensors: Tensors = Arrays()

    use_num_threads = staticmethod(native.use_num_threads)

    def embedding(self, token_ids: Array, weight: Array) -> Array:
        return native.gather(weight, token_ids)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        return cast(Array, self._torch("linear").linear(x, weight, bias))

    def logits(self, x: Array, weight: Array) -> Array:
        return cast(Array, self._torch("logits").logits(x, weight))

    def rms_norm(self, x: Array, weight: Array, eps: float, residual: Array | None = None) -> Array:
        return native.rms_norm(x, weight, eps, residual)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        return native_rows.layer_norm(x, weight, bias, eps)

    def rope(self, x: Array, cos: Array, sin: Array) -> Array:
        return native.rope_(x, cos, sin)

    def activate(self, x: Array, kind: str) -> Array:
        return native_rows.activate(x, kind)

    def gated(self, gate: Array, up: Array, kind: str) -> Array:
        return native.gated(gate, up, kind)

    def softcap(self, logits: Array, cap: float) -> Array:
        return native_rows.softcap(logits, cap)

    def _torch(self, operator: str) -> Ops:
        if current_recording() is not None:
            raise NotRecordable(operator)
        return self._torch_on_arrays

    @cached_property
    def _torch_on_arrays(self) -> Ops:
        return cast(Ops, load_place(TORCH_ON_ARRAYS)())
