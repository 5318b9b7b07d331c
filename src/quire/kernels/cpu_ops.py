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
    rms_norm = staticmethod(native_rows.rms_norm)
    layer_norm = staticmethod(native_rows.layer_norm)
    rope = staticmethod(native_rows.rope_)
    activate = staticmethod(native_rows.activate)
    gated = staticmethod(native_rows.gated)
    softcap = staticmethod(native_rows.softcap)

    def embedding(self, token_ids: Array, weight: Array) -> Array:
        return native_rows.gather(weight, token_ids)
