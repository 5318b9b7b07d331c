"""Native linear layers (csrc/dense.cpp, csrc/quantized.cpp): x [T, K] @ weight.T + bias -> [T, N].

Rows may lie apart. A row's result has the same bits whatever the other rows are, with any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quire.kernels.native import DTYPES, current_program, instruction_sets, is_bfloat16, module
from quire.kernels.panels import PANEL, PanelWeight
from quire.kernels.recording import empty
from quire.kernels.weight_memory import empty_weight

LINE = 64
GROUP_BYTES = 20
"""What is kept of each group of activations beside its codes."""


@dataclass(frozen=True, slots=True)
class DensePanels:
    """A weight [num_outputs, num_inputs] of a dtype of DTYPES. `memory` [whole panels, whole units] holds its panels."""

    memory: torch.Tensor
    num_outputs: int
    num_inputs: int

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype


def empty_dense(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> DensePanels:
    """Memory for a weight, to be filled row by row before `pack_`; what is padding is zero."""
    assert dtype in DTYPES
    whole_units = -(-num_inputs // per_unit(dtype)) * per_unit(dtype)
    whole_panels = -(-num_outputs // PANEL) * PANEL
    memory = empty_weight((whole_panels, whole_units), dtype)
    memory[num_outputs:] = 0
    memory[:, num_inputs:] = 0
    return DensePanels(memory, num_outputs, num_inputs)


def pack_(weight: DensePanels) -> DensePanels:
    """Rows become panels, in the same memory."""
    num_rows, num_inputs = weight.memory.shape
    module().pack_panels(
        instruction_sets()[0],
        weight.memory.data_ptr(),
        num_rows // PANEL,
        num_inputs // per_unit(weight.dtype),
        torch.get_num_threads(),
    )
    return weight


def per_unit(dtype: torch.dtype) -> int:
    """Inputs whose weights are multiplied together."""
    return 4 // dtype.itemsize


def dense_linear(
    x: torch.Tensor,
    weight: DensePanels,
    bias: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    *,
    instruction_set: str | None = None,
) -> torch.Tensor:
    """Summed in float32. x is of the weight's dtype, `output` of any of DTYPES; unless given it is as x. bias [N]."""
    assert x.dtype == weight.dtype
    y = _output(x, weight.num_inputs, weight.num_outputs, output)
    x = x if x.stride(1) == 1 else x.contiguous()
    units = empty((_whole_tiles(x.shape[0]) * _whole_tiles(weight.memory.shape[1] // per_unit(x.dtype)),), torch.int32)
    module().dense_linear(
        current_program(),
        instruction_set or instruction_sets()[0],
        _dense(weight),
        _rows(x),
        _bias(bias, weight.num_outputs),
        _rows(y),
        units.data_ptr(),
        x.shape[0],
        torch.get_num_threads(),
    )
    return y


def quantized_linear(
    x: torch.Tensor,
    weight: PanelWeight,
    bias: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    *,
    instruction_set: str | None = None,
) -> torch.Tensor:
    """Multiplied as integers. x and `output` are each of a dtype of DTYPES, `output` x's unless given. bias [N].

    Activations have a scale for each of the weight's groups of inputs of each row, and 7 bits and a sign of the group's
    largest; where that is far larger than the others it has 14 bits, and they have 7 of their own largest.
    """
    layout = weight.layout
    y = _output(x, layout.num_inputs, layout.num_outputs, output)
    x = x if x.stride(1) == 1 else x.contiguous()
    num_groups = layout.num_inputs // layout.group_size
    scratch = empty((x.shape[0] * (layout.num_inputs + GROUP_BYTES * num_groups),), torch.uint8)
    module().quantized_linear(
        current_program(),
        instruction_set or instruction_sets()[0],
        _quantized(weight),
        _rows(x),
        _bias(bias, layout.num_outputs),
        _rows(y),
        scratch.data_ptr(),
        x.shape[0],
        torch.get_num_threads(),
    )
    return y


def dense_rows(weight: DensePanels, indices: torch.Tensor, *, instruction_set: str | None = None) -> torch.Tensor:
    """Rows of a weight: int64 [T] -> [T, K] of its dtype."""
    assert indices.dtype == torch.int64
    indices = indices.contiguous()
    y = empty((indices.shape[0], weight.num_inputs), weight.dtype)
    module().dense_rows(
        current_program(),
        instruction_set or instruction_sets()[0],
        _dense(weight),
        indices.data_ptr(),
        indices.shape[0],
        y.data_ptr(),
        torch.get_num_threads(),
    )
    return y


def panel_rows(weight: PanelWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a quantized weight as floats: int64 [T] -> [T, K] of a dtype of DTYPES."""
    assert indices.dtype == torch.int64
    indices = indices.contiguous()
    y = empty((indices.shape[0], weight.layout.num_inputs), dtype)
    module().panel_rows(
        current_program(),
        instruction_sets()[0],
        _quantized(weight),
        indices.data_ptr(),
        indices.shape[0],
        y.data_ptr(),
        is_bfloat16(y),
        torch.get_num_threads(),
    )
    return y


def _whole_tiles(count: int) -> int:
    return -(-count // PANEL) * PANEL


def _output(x: torch.Tensor, num_inputs: int, num_outputs: int, output: torch.Tensor | None) -> torch.Tensor:
    assert x.shape[1] == num_inputs
    y = empty((x.shape[0], num_outputs), x.dtype) if output is None else output
    assert y.shape == (x.shape[0], num_outputs)
    assert y.stride(1) == 1
    return y


def _rows(x: torch.Tensor) -> tuple[int, int, bool]:
    return x.data_ptr(), x.stride(0), is_bfloat16(x)


def _bias(bias: torch.Tensor | None, num_outputs: int) -> tuple[int, int, bool]:
    if bias is None:
        return 0, 0, False
    assert bias.shape == (num_outputs,)
    assert bias.is_contiguous()
    return bias.data_ptr(), 1, is_bfloat16(bias)


def _dense(weight: DensePanels) -> Any:
    return module().DenseWeight(
        panels=weight.memory.data_ptr(),
        num_inputs=weight.num_inputs,
        num_outputs=weight.num_outputs,
        bfloat16=is_bfloat16(weight.memory),
    )


def _quantized(weight: PanelWeight) -> Any:
    layout = weight.layout
    assert weight.panels.is_contiguous()
    assert weight.panels.shape == (layout.num_panels, layout.panel_bytes)
    return module().QuantizedWeight(
        panels=weight.panels.data_ptr(),
        panel_bytes=layout.panel_bytes,
        header_offset=layout.header_offset,
        num_inputs=layout.num_inputs,
        num_outputs=layout.num_outputs,
        bits=layout.bits,
        group_size=layout.group_size,
        groups_per_block=layout.groups_per_block,
        zero=layout.zero,
        has_minimum=layout.has_minimum,
    )
