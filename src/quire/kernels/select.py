"""The table of operator sets."""

from __future__ import annotations

from quire.errors import InvalidRequestError
from quire.kernels.cpu_ops import CpuOps
from quire.kernels.ops import Ops
from quire.kernels.reference import ReferenceOps
from quire.kernels.torch_ops import TorchOps

OPS: dict[str, type[Ops]] = {"cpu": CpuOps, "torch": TorchOps, "reference": ReferenceOps}


def select_ops(name: str) -> Ops:
    """The operator set of that name. Raises InvalidRequestError naming those there are."""
    if name not in OPS:
        raise InvalidRequestError(
            f"There are no kernels named {name!r}; choose backend from {', '.join(OPS)}.", field="backend", value=name
        )
    return OPS[name]()
