"""Native linear layers (csrc/dense.cpp, csrc/quantized.cpp): x [T, K] @ weight.T + bias -> [T, N].

Rows may lie apart. A row's result has the same bits whatever the other rows are, with any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import NATIVE_DTYPES, DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.panels import PANEL, PanelLayout, QuantizedPanels
from quire.kernels.tensor import Normalized, Tensor
from quire.kernels.weight_memory import empty_weight

T = TypeVar("T", bound=Tensor)

UNIT = 4
"""Bytes that are multiplied together."""
PIECE = 32
GROUP_BYTES, PIECE_BYTES = 12, 8
"""What is kept of each group of activations beside its codes, and of each PIECE of one."""


@dataclass(frozen=True, slots=True)
class DensePanels:
    """A weight [num_outputs, num_inputs] of a dtype of NATIVE_DTYPES. `memory` [whole panels, whole units] holds its panels."""

    memory: Array
    num_outputs: int
    num_inputs: int

    @property
    def dtype(self) -> DType:
        return self.memory.dtype


def empty_dense(num_outputs: int, num_inputs: int, dtype: DType) -> DensePanels:
    """Memory for a weight, to be filled row by row before `pack_`; what is padding is zero."""
    assert dtype in NATIVE_DTYPES
    memory = empty_weight(dense_shape(num_outputs, num_inputs, dtype), dtype)
    memory.stored[num_outputs:] = 0
    memory.stored[:, num_inputs:] = 0
    return DensePanels(memory, num_outputs, num_inputs)


def dense_shape(num_outputs: int, num_inputs: int, dtype: DType) -> tuple[int, int]:
    """Of a weight's memory: whole panels, whole units."""
    return -(-num_outputs // PANEL) * PANEL, -(-num_inputs // per_unit(dtype)) * per_unit(dtype)


def pack_(weight: DensePanels) -> DensePanels:
    """Rows become panels, in the same memory."""
    num_rows, num_inputs = weight.memory.shape
    module().pack_panels(
        current_instruction_set(),
        weight.memory.data_ptr(),
        num_rows // PANEL,
        num_inputs // per_unit(weight.dtype),
        thread_count(),
    )
    return weight


def per_unit(dtype: DType) -> int:
    """Inputs whose weights are multiplied together."""
    return UNIT // dtype.itemsize


def dense_linear(
    x: T,
    weight: DensePanels,
    bias: Tensor | None = None,
    output: T | None = None,
    *,
    adds: bool = False,
    panels: Tensor | None = None,
) -> T:
    """Summed in float32. x is of the weight's dtype, `output` of any of NATIVE_DTYPES; unless given it is as x. bias [N].

    `adds`: to what `output` holds, before it is rounded. `panels`: only these of `output` are written; int64, how many and which.
    """
    assert dtype_of(x.dtype) == weight.dtype
    y = _output(x, weight.num_inputs, weight.num_outputs, output)
    x = x if x.stride()[1] == 1 else x.contiguous()
    units = _dense_scratch(x, weight)
    module().dense_linear(
        current_program(),
        current_instruction_set(),
        _dense(weight),
        _rows(x),
        _bias(bias, weight.num_outputs),
        _rows(y),
        adds,
        units.data_ptr(),
        x.shape[0],
        0 if panels is None else panels.data_ptr(),
        thread_count(),
    )
    return y


def dense_gated(x: T, weight: DensePanels, kind: str) -> T:
    """activation(the first half of the outputs) * the second [T, num_outputs / 2]. `kind` is one of native_rows.GATES.

    Halves of whole panels are float32 until their product is rounded; others are stored in between, as x.
    """
    assert dtype_of(x.dtype) == weight.dtype
    assert weight.num_outputs % 2 == 0
    both = _output(x, weight.num_inputs, weight.num_outputs, None)
    y = x.new_empty((x.shape[0], weight.num_outputs // 2))
    x = x if x.stride()[1] == 1 else x.contiguous()
    units = _dense_scratch(x, weight)
    module().dense_gated(
        current_program(),
        current_instruction_set(),
        _dense(weight),
        _rows(x),
        _rows(both),
        y.data_ptr(),
        units.data_ptr(),
        x.shape[0],
        getattr(module().Activation, kind),
        thread_count(),
    )
    return y


def quantized_linear(
    x: T | Normalized,
    weight: QuantizedPanels,
    bias: Tensor | None = None,
    output: T | None = None,
    *,
    adds: bool = False,
    panels: Tensor | None = None,
) -> T:
    """Multiplied as integers. x and `output` are each of a dtype of NATIVE_DTYPES, `output` x's unless given. bias [N]; `adds` and
    `panels` as `dense_linear`'s.

    Activations have a scale for each of the weight's groups of inputs of each row, and 7 bits and a sign of the group's
    largest; but one in every PIECE of inputs that is far larger than the others there has 14 bits (csrc/integer_rows.h). With a
    rotated weight they are rotated first, unless they come so, and none is (csrc/rotation.h); if not before, they may be Normalized.
    """
    layout = weight.layout
    x, norm = _normalized(x, layout)
    y = _output(x, layout.num_inputs, layout.num_outputs, output)
    x = x if x.stride()[1] == 1 else x.contiguous()
    scratch = _quantized_scratch(x, layout)
    module().quantized_linear(
        current_program(),
        current_instruction_set(),
        _quantized(weight),
        _rows(x),
        norm,
        _bias(bias, layout.num_outputs),
        _rows(y),
        adds,
        scratch.data_ptr(),
        x.shape[0],
        0 if panels is None else panels.data_ptr(),
        thread_count(),
    )
    return y


def quantized_gated(x: T | Normalized, weight: QuantizedPanels, kind: str) -> T:
    """As `dense_gated`, of what `quantized_linear` computes."""
    layout = weight.layout
    assert layout.num_outputs % 2 == 0
    x, norm = _normalized(x, layout)
    both = _output(x, layout.num_inputs, layout.num_outputs, None)
    y = x.new_empty((x.shape[0], layout.num_outputs // 2))
    x = x if x.stride()[1] == 1 else x.contiguous()
    scratch = _quantized_scratch(x, layout)
    module().quantized_gated(
        current_program(),
        current_instruction_set(),
        _quantized(weight),
        _rows(x),
        norm,
        _rows(both),
        y.data_ptr(),
        scratch.data_ptr(),
        x.shape[0],
        getattr(module().Activation, kind),
        thread_count(),
    )
    return y


def dense_most_likely(x: Tensor, weight: DensePanels) -> tuple[Array, Array]:
    """What `native_steps.most_likely` says of float32 `dense_linear`'s results, none of which is kept: [T] and [T]."""
    assert dtype_of(x.dtype) == weight.dtype
    assert x.shape[1] == weight.num_inputs
    x = x if x.stride()[1] == 1 else x.contiguous()
    scratch = _dense_scratch(x, weight)
    return _most_likely("dense_most_likely", x, _dense(weight), scratch)


def quantized_most_likely(x: Tensor, weight: QuantizedPanels) -> tuple[Array, Array]:
    """As `dense_most_likely`, of `quantized_linear`'s."""
    assert x.shape[1] == weight.layout.num_inputs
    x = x if x.stride()[1] == 1 else x.contiguous()
    scratch = _quantized_scratch(x, weight.layout)
    return _most_likely("quantized_most_likely", x, _quantized(weight), scratch)


def dense_rows(weight: DensePanels, indices: Tensor) -> Array:
    """Rows of a weight: int64 [T] -> [T, K] of its dtype."""
    assert dtype_of(indices.dtype) == DType.INT64
    indices = indices.contiguous()
    y = empty_array((indices.shape[0], weight.num_inputs), weight.dtype)
    module().dense_rows(
        current_program(),
        current_instruction_set(),
        _dense(weight),
        indices.data_ptr(),
        indices.shape[0],
        y.data_ptr(),
        thread_count(),
    )
    return y


def panel_rows(weight: QuantizedPanels, indices: Tensor, dtype: DType) -> Array:
    """Rows of a quantized weight as floats: int64 [T] -> [T, K] of a dtype of NATIVE_DTYPES."""
    assert dtype_of(indices.dtype) == DType.INT64
    indices = indices.contiguous()
    y = empty_array((indices.shape[0], weight.layout.num_inputs), dtype)
    module().panel_rows(
        current_program(),
        current_instruction_set(),
        _quantized(weight),
        indices.data_ptr(),
        indices.shape[0],
        y.data_ptr(),
        is_bfloat16(y),
        thread_count(),
    )
    return y


def _most_likely(kernel: str, x: Tensor, weight: Any, scratch: Array) -> tuple[Array, Array]:
    num_rows, num_threads = x.shape[0], thread_count()
    token_ids, largest = empty_array((num_rows,), DType.INT64), empty_array((num_rows,), DType.FLOAT32)
    members = empty_array((num_threads * num_rows * module().LARGEST_OF_ROW_BYTES,), DType.UINT8)
    getattr(module(), kernel)(
        current_program(),
        isa=current_instruction_set(),
        weight=weight,
        x=_rows(x),
        token_ids=token_ids.data_ptr(),
        largest=largest.data_ptr(),
        scratch=scratch.data_ptr(),
        members=members.data_ptr(),
        num_rows=num_rows,
        num_threads=num_threads,
    )
    return token_ids, largest


def _whole_tiles(count: int) -> int:
    return -(-count // PANEL) * PANEL


def _dense_scratch(x: Tensor, weight: DensePanels) -> Array:
    """bfloat16 becomes float32 where the processor does not multiply it."""
    units = weight.memory.shape[1] // per_unit(weight.dtype)
    unit_bytes = UNIT * DType.FLOAT32.itemsize // weight.dtype.itemsize
    rows = _whole_tiles(x.shape[0]) * _whole_tiles(units) * unit_bytes
    return _scratch(rows + _kept_sums(x.shape[0], units * UNIT, weight.num_inputs, weight.num_outputs))


def _quantized_scratch(x: Tensor, layout: PanelLayout) -> Array:
    num_groups, num_pieces = (layout.num_inputs // size for size in (layout.group_size, min(layout.group_size, PIECE)))
    row_bytes = layout.num_inputs + GROUP_BYTES * num_groups + PIECE_BYTES * num_pieces
    kept = _kept_sums(x.shape[0], layout.num_inputs, layout.num_inputs, layout.num_outputs) if layout.rotated else 0
    return _scratch(_whole_tiles(x.shape[0]) * row_bytes + kept)


def _kept_sums(num_rows: int, row_bytes: int, num_inputs: int, num_outputs: int) -> int:
    """Bytes of sums between stretches of inputs (csrc/stretches.h); 0 where all inputs are multiplied at once."""
    kept: int = module().bytes_of_kept_sums(
        num_rows=num_rows, row_bytes=row_bytes, num_inputs=num_inputs, num_outputs=num_outputs
    )
    return kept


def _scratch(num_bytes: int) -> Array:
    return empty_array((num_bytes,), DType.UINT8)


def _output(x: T, num_inputs: int, num_outputs: int, output: T | None) -> T:
    assert x.shape[1] == num_inputs
    y = x.new_empty((x.shape[0], num_outputs)) if output is None else output
    assert tuple(y.shape) == (x.shape[0], num_outputs)
    assert y.stride()[1] == 1
    return y


def _normalized(x: T | Normalized, layout: PanelLayout) -> tuple[T, tuple[int, float]]:
    """Rows, and the address of their norm's weight, and its eps."""
    if not isinstance(x, Normalized):
        return x, (0, 0.0)
    rows: T = x.x
    assert layout.rotates_inputs
    assert dtype_of(x.weight.dtype) == DType.FLOAT32
    assert tuple(x.weight.shape) == (layout.num_inputs,)
    assert x.weight.is_contiguous()
    return rows, (x.weight.data_ptr(), x.eps)


def _rows(x: Tensor) -> tuple[int, int, bool]:
    return x.data_ptr(), x.stride()[0], is_bfloat16(x)


def _bias(bias: Tensor | None, num_outputs: int) -> tuple[int, int, bool]:
    if bias is None:
        return 0, 0, False
    assert tuple(bias.shape) == (num_outputs,)
    assert bias.is_contiguous()
    return bias.data_ptr(), 1, is_bfloat16(bias)


def _dense(weight: DensePanels) -> Any:
    return module().DenseWeight(
        panels=weight.memory.data_ptr(),
        num_inputs=weight.num_inputs,
        num_outputs=weight.num_outputs,
        bfloat16=is_bfloat16(weight.memory),
    )


def _quantized(weight: QuantizedPanels) -> Any:
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
        rotated=layout.rotated,
        inputs_rotated=layout.inputs_rotated,
    )
