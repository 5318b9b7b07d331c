"""Native linear layers (csrc/dense.cpp, csrc/quantized.cpp): x [T, K] @ weight.T + bias -> [T, N].

Rows may lie apart. A row's result has the same bits whatever the other rows are, with any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import NATIVE_DTYPES, DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.panels import PANEL, QuantizedPanels
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


PackedWeight = DensePanels | QuantizedPanels


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


def linear(
    x: T | Normalized,
    weight: PackedWeight,
    bias: Tensor | None = None,
    output: T | None = None,
    *,
    adds: bool = False,
    panels: Tensor | None = None,
) -> T:
    """x and `output` are each of a dtype of NATIVE_DTYPES, x of the weight's where it has floats, `output` of x's unless given. bias [N].

    `adds`: to what `output` holds, before it is rounded. `panels`: only these of `output` are written; int64, how many and which.

    Floats are summed in float32, few bits are multiplied as integers: activations have a scale for each of the weight's groups of
    inputs of each row, and 7 bits and a sign of the group's largest; but one in every PIECE of inputs that is far larger than the
    others there has 14 bits (csrc/integer_rows.h). With a rotated weight they are rotated first, unless they come so, and none is
    (csrc/rotation.h); if not before, they may be Normalized.
    """
    x, norm = _rows_and_norm(x, weight)
    y = x.new_empty((x.shape[0], weight.num_outputs)) if output is None else output
    assert tuple(y.shape) == (x.shape[0], weight.num_outputs)
    assert y.stride()[1] == 1
    assert panels is None or (dtype_of(panels.dtype) == DType.INT64 and panels.is_contiguous())
    scratch = _scratch(x.shape[0], weight)
    _kernel("linear", weight)(
        current_program(),
        current_instruction_set(),
        _native(weight),
        _rows(x),
        *norm,
        _bias(bias, weight.num_outputs),
        _rows(y),
        adds,
        scratch.data_ptr(),
        x.shape[0],
        0 if panels is None else panels.data_ptr(),
        thread_count(),
    )
    return y


def linear_gated(x: T | Normalized, weight: PackedWeight, kind: str) -> T:
    """activation(the first half of the outputs) * the second [T, num_outputs / 2]. `kind` is one of native_rows.GATES.

    Halves of whole panels are float32 until their product is rounded; others are stored in between, as x.
    """
    assert weight.num_outputs % 2 == 0
    x, norm = _rows_and_norm(x, weight)
    both = x.new_empty((x.shape[0], weight.num_outputs))
    y = x.new_empty((x.shape[0], weight.num_outputs // 2))
    scratch = _scratch(x.shape[0], weight)
    _kernel("gated", weight)(
        current_program(),
        current_instruction_set(),
        _native(weight),
        _rows(x),
        *norm,
        _rows(both),
        y.data_ptr(),
        scratch.data_ptr(),
        x.shape[0],
        module().Activation[kind],
        thread_count(),
    )
    return y


def linear_most_likely(x: Tensor, weight: PackedWeight) -> tuple[Array, Array]:
    """What `native_steps.most_likely` says of `linear`'s results in float32, none of which is kept: [T] and [T]."""
    x, _ = _rows_and_norm(x, weight)
    scratch = _scratch(x.shape[0], weight)
    num_rows, num_threads = x.shape[0], thread_count()
    token_ids, largest = empty_array((num_rows,), DType.INT64), empty_array((num_rows,), DType.FLOAT32)
    members = empty_array((num_threads * num_rows * module().LARGEST_OF_ROW_BYTES,), DType.UINT8)
    _kernel("most_likely", weight)(
        current_program(),
        isa=current_instruction_set(),
        weight=_native(weight),
        x=_rows(x),
        token_ids=token_ids.data_ptr(),
        largest=largest.data_ptr(),
        scratch=scratch.data_ptr(),
        members=members.data_ptr(),
        num_rows=num_rows,
        num_threads=num_threads,
    )
    return token_ids, largest


def weight_rows(weight: PackedWeight, indices: Tensor, dtype: DType) -> Array:
    """Rows of a weight: int64 [T] -> [T, K], those of few bits as floats of `dtype`, floats of their own."""
    assert dtype_of(indices.dtype) == DType.INT64
    indices = indices.contiguous()
    y = empty_array((indices.shape[0], weight.num_inputs), weight.dtype if isinstance(weight, DensePanels) else dtype)
    operands = (current_program(), current_instruction_set(), _native(weight), indices.data_ptr(), len(y), y.data_ptr())
    if isinstance(weight, DensePanels):
        module().dense_rows(*operands, thread_count())
    else:
        module().panel_rows(*operands, is_bfloat16(y), thread_count())
    return y


def _kernel(name: str, weight: PackedWeight) -> Any:
    return getattr(module(), f"dense_{name}" if isinstance(weight, DensePanels) else f"quantized_{name}")


def _whole_tiles(count: int) -> int:
    return -(-count // PANEL) * PANEL


def _scratch(num_rows: int, weight: PackedWeight) -> Array:
    """For rows as they are multiplied, and sums between stretches of inputs."""
    if isinstance(weight, DensePanels):
        # bfloat16 becomes float32 where the processor does not multiply it.
        units = weight.memory.shape[1] // per_unit(weight.dtype)
        row_bytes = _whole_tiles(units) * UNIT * DType.FLOAT32.itemsize // weight.dtype.itemsize
        kept = _kept_sums(num_rows, units * UNIT, weight)
    else:
        layout = weight.layout
        num_groups = layout.num_inputs // layout.group_size
        num_pieces = layout.num_inputs // min(layout.group_size, PIECE)
        row_bytes = layout.num_inputs + GROUP_BYTES * num_groups + PIECE_BYTES * num_pieces
        kept = _kept_sums(num_rows, layout.num_inputs, weight) if layout.rotated else 0
    return empty_array((_whole_tiles(num_rows) * row_bytes + kept,), DType.UINT8)


def _kept_sums(num_rows: int, row_bytes: int, weight: PackedWeight) -> int:
    """Bytes of sums between stretches of inputs (csrc/stretches.h); 0 where all inputs are multiplied at once."""
    kept: int = module().bytes_of_kept_sums(
        num_rows=num_rows, row_bytes=row_bytes, num_inputs=weight.num_inputs, num_outputs=weight.num_outputs
    )
    return kept


def _rows_and_norm(x: T | Normalized, weight: PackedWeight) -> tuple[T, tuple[tuple[int, float], ...]]:
    """Rows whose numbers lie together; and for kernels of few bits the address of their norm's weight, and its eps."""
    norm = (0, 0.0)
    if isinstance(x, Normalized):
        assert isinstance(weight, QuantizedPanels)
        assert weight.layout.rotates_inputs
        assert dtype_of(x.weight.dtype) == DType.FLOAT32
        assert tuple(x.weight.shape) == (weight.num_inputs,)
        assert x.weight.is_contiguous()
        norm = (x.weight.data_ptr(), x.eps)
    rows: T = x.x if isinstance(x, Normalized) else x
    assert tuple(rows.shape) == (rows.shape[0], weight.num_inputs)
    rows = rows if rows.stride()[1] == 1 else rows.contiguous()
    if isinstance(weight, QuantizedPanels):
        return rows, (norm,)
    assert dtype_of(rows.dtype) == weight.dtype
    return rows, ()


def _rows(x: Tensor) -> tuple[int, int, bool]:
    return x.data_ptr(), x.stride()[0], is_bfloat16(x)


def _bias(bias: Tensor | None, num_outputs: int) -> tuple[int, int, bool]:
    if bias is None:
        return 0, 0, False
    assert tuple(bias.shape) == (num_outputs,)
    assert bias.is_contiguous()
    return bias.data_ptr(), 1, is_bfloat16(bias)


def _native(weight: PackedWeight) -> Any:
    if isinstance(weight, DensePanels):
        return module().DenseWeight(
            panels=weight.memory.data_ptr(),
            num_inputs=weight.num_inputs,
            num_outputs=weight.num_outputs,
            bfloat16=is_bfloat16(weight.memory),
        )
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
