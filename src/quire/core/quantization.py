"""How a model's weights are kept."""

from __future__ import annotations

from typing import Literal

Quantization = Literal["none", "stored"]
"""`none`: as floats of the model's dtype. `stored`: in the few bits the checkpoint has them in."""

QuantizationChoice = Literal["auto", Quantization]
"""`auto`: as stored where that is in few bits and the native kernels run, unless a dtype is asked for."""
