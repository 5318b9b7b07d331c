"""How a model's weights are kept."""

from __future__ import annotations

from typing import Literal

Quantization = Literal["none", "stored", "int8", "int4"]
"""`none`: as floats of the model's dtype. `stored`: in the few bits the checkpoint has them in.

`int8`, `int4`: rounded to so many bits while loading, whatever the checkpoint has.
"""

QuantizationChoice = Literal["auto", Quantization]
"""`auto`: as stored where that is in few bits and the native kernels run, unless a dtype is asked for."""
