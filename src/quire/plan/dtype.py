"""Which dtype `auto` means on this machine for this checkpoint."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.model_config import ModelConfig
from quire.config import EngineConfig, ResolvedDType
from quire.plan.machine import Machine
from quire.plan.memory import Demand, memory_need
from quire.plan.sizes import format_size

WHY_BFLOAT16 = {
    "bfloat16": "the checkpoint was saved in it",
    "float16": "the checkpoint is in float16, and {fast} but not float16",
    "quantized": "finer than the quantized weights, half the size of float32, and {fast}",
}


def choose_dtype(
    config: EngineConfig, model: ModelConfig, machine: Machine, demand: Demand, budget: int, *, native: bool
) -> tuple[ResolvedDType, str | None]:
    """The dtype and, where it was not given, the reason.

    16 bits where the CPU multiplies bfloat16 in hardware, or the `native` kernels run, which without that are as fast for many
    rows as in float32, and faster for few: half as much memory is read. In torch's every product is converted
    first, and float32 is 3 times faster for many rows; so there bfloat16 is taken only where `demand` does not fit in `budget`
    in float32 (docs/lab.md).
    """
    if config.dtype != "auto":
        return config.dtype, None
    if config.backend == "reference":
        return "float32", "dtype float32: the reference backend is bitwise reproducible in it."
    saved = "quantized" if model.saved_in_few_bits else model.torch_dtype
    if machine.native_bfloat16 or native:
        if saved in WHY_BFLOAT16:
            name = "bfloat16" if saved == "float16" else "it"
            in_hardware = f"this CPU multiplies {name} in hardware"
            fast = in_hardware if machine.native_bfloat16 else f"the native kernels are fast with {name}"
            return "bfloat16", f"dtype bfloat16: {WHY_BFLOAT16[saved].format(fast=fast)}."
        return "float32", f"dtype float32: the checkpoint was saved in {saved}."
    needed = memory_need(model, replace(demand, dtype="float32")).total
    if needed <= budget:
        return "float32", "dtype float32: faster than bfloat16 on this CPU, which has no bfloat16 instructions."
    return "bfloat16", (
        f"dtype bfloat16: float32 would be faster on this CPU but needs {format_size(needed)}"
        f" of the {format_size(budget)} that may be used."
    )
