"""Which dtype `auto` means on this machine for this checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from quire.checkpoint.model_config import ModelConfig
from quire.config import EngineConfig
from quire.plan.machine import Machine
from quire.plan.memory import Demand, memory_need
from quire.plan.sizes import format_size

ResolvedDType = Literal["float32", "bfloat16", "float16"]

WHY_BFLOAT16 = {
    "bfloat16": "the checkpoint was saved in it",
    "float16": "the checkpoint is in float16, and this CPU multiplies bfloat16 in hardware but not float16",
    "quantized": "finer than the quantized weights, half the size of float32, and this CPU multiplies it in hardware",
}


def choose_dtype(
    config: EngineConfig, model: ModelConfig, machine: Machine, demand: Demand, budget: int
) -> tuple[ResolvedDType, str | None]:
    """The dtype and, where it was not given, the reason.

    16 bits where the CPU multiplies bfloat16 in hardware. Elsewhere every bfloat16 product is converted first, and
    float32 is as fast for one row and 3 times faster for many (docs/lab.md); so bfloat16 is taken only where `demand`
    does not fit in `budget` in float32.
    """
    if config.dtype != "auto":
        return config.dtype, None
    if config.backend == "reference":
        return "float32", "dtype float32: the reference backend is bitwise reproducible in it."
    saved = "quantized" if model.quantized_bytes is not None else model.torch_dtype
    if machine.native_bfloat16:
        if saved in WHY_BFLOAT16:
            return "bfloat16", f"dtype bfloat16: {WHY_BFLOAT16[saved]}."
        return "float32", f"dtype float32: the checkpoint was saved in {saved}."
    needed = memory_need(model, replace(demand, dtype="float32")).total
    if needed <= budget:
        return "float32", "dtype float32: faster than bfloat16 on this CPU, which has no bfloat16 instructions."
    return "bfloat16", (
        f"dtype bfloat16: float32 would be faster on this CPU but needs {format_size(needed)}"
        f" of the {format_size(budget)} that may be used."
    )
