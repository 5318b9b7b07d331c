"""The table of operator sets."""

from __future__ import annotations

from typing import cast

from quire.core.places import load_place
from quire.kernels.ops import Ops

OPS = {
    "cpu": "quire.kernels.cpu_ops:CpuOps",
    "torch": "quire.kernels.torch_ops:TorchOps",
    "reference": "quire.kernels.reference:ReferenceOps",
}
"""Named by string: `cpu` runs without torch."""


def select_ops(name: str) -> Ops:
    """The operator set of that name."""
    return cast(Ops, load_place(OPS[name])())
