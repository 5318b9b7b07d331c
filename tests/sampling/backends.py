"""All that there is to sample with."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.native import has_native_module
from quire.sampling.backend import SamplingBackend
from quire.sampling.native_backend import NativeSampling
from quire.sampling.numpy_backend import NumpySampling

BACKENDS: dict[str, Callable[[int], SamplingBackend]] = {"numpy": NumpySampling}
if has_native_module():
    BACKENDS["native"] = NativeSampling
FASTEST = BACKENDS.get("native", NumpySampling)

NEAREST = {"numpy": 1e-9, "native": 1e-5}
"""Of a border, in units of all weights: what lies nearer may fall on the other side, for weights are rounded."""
