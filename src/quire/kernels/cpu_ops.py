"""Native kernels, without torch. Native attention is in attention/cpu_backend.py, native linear layers are in quantization/."""

from __future__ import annotations

from quire.kernels import native_module, native_rows
from quire.kernels.array import Array, Arrays
from quire.kernels.tensor import Tensors


class CpuOps:
    name = "cpu"

    def __init__(self) -> None:
        self.tensors: Tensors = Arrays()

    use_num_threads = staticmethod(native_module.use_num_threads)

    def embedding(self, token_ids: Array, weight: Array) -> Array:
        return native_rows.gather(weight, token_ids)

    def rms_norm(self, x: Array, weight: Array, eps: float, residual: Array | None = None) -> Array:
        return native_rows.rms_norm(x, weight, eps, residual)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        return native_rows.layer_norm(x, weight, bias, eps)

    def rope(self, x: Array, cos: Array, sin: Array) -> Array:
        return native_rows.rope_(x, cos, sin)

    def activate(self, x: Array, kind: str) -> Array:
        return native_rows.activate(x, kind)

    def gated(self, gate: Array, up: Array, kind: str) -> Array:
        return native_rows.gated(gate, up, kind)

    def softcap(self, logits: Array, cap: float) -> Array:
        return native_rows.softcap(logits, cap)
