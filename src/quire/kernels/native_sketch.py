"""The most likely token of each row without all logits (csrc/sketch.h): a sketch of the table, a quarter to a half of its size,
says which of its panels can hold the largest logit, and only these are multiplied. The result has the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType, is_bfloat16
from quire.kernels.native_linear import PackedWeight, linear
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.native_steps import most_likely
from quire.kernels.panels import PANEL, PanelLayout, QuantizedPanels, empty_panels
from quire.kernels.weight_memory import empty_weight

FINE = 32
GROUP = 32
"""As csrc/sketch.h says them."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Of a table [V, K]. `columns`, int64 [W]: which input of the table each of `weight`'s is. `lacks` and `sizes`, float32 [V]: how
    far an estimate can be from its logit, in parts of two numbers that follow from the activations."""

    weight: QuantizedPanels
    columns: Array
    lacks: Array
    sizes: Array


def can_sketch(num_inputs: int) -> bool:
    return num_inputs % GROUP == 0 and num_inputs > FINE


def empty_sketch(vocab_size: int, largest_columns: npt.NDArray[np.int64], num_inputs: int) -> Sketch:
    """Memory for one; `sketch_rows_` fills it. `largest_columns` [FINE]: those with the largest weights."""
    assert can_sketch(num_inputs)
    assert len(largest_columns) == FINE
    fine = np.sort(largest_columns)
    columns = np.concatenate([np.delete(np.arange(num_inputs), fine), fine, fine])
    layout = PanelLayout(
        num_outputs=vocab_size,
        num_inputs=len(columns),
        bits=4,
        zero=8,
        group_size=GROUP,
        groups_per_block=1,
        has_minimum=False,
    )
    return Sketch(
        empty_panels(layout),
        Array(columns, DType.INT64),
        empty_weight((vocab_size,), DType.FLOAT32),
        empty_weight((vocab_size,), DType.FLOAT32),
    )


def sketch_rows_(sketch: Sketch, first: int, rows: Array) -> None:
    """Rows [R, K] of the table from `first` on, which begins a panel; R is whole panels but for the table's last rows."""
    layout = sketch.weight.layout
    assert first % PANEL == 0
    assert rows.is_contiguous()
    assert tuple(rows.shape) == (len(rows), layout.num_inputs - FINE)
    assert first + len(rows) <= layout.num_outputs
    assert len(rows) % PANEL == 0 or first + len(rows) == layout.num_outputs
    panels = sketch.weight.panels.stored[first // PANEL : (first + len(rows) - 1) // PANEL + 1]
    part = slice(first, first + len(rows))
    module().sketch_rows(
        isa=current_instruction_set(),
        rows=rows.data_ptr(),
        bfloat16=is_bfloat16(rows),
        columns=sketch.columns.data_ptr(),
        panels=panels.__array_interface__["data"][0],
        panel_bytes=layout.panel_bytes,
        header_offset=layout.header_offset,
        lacks=sketch.lacks[part].data_ptr(),
        sizes=sketch.sizes[part].data_ptr(),
        num_rows=len(rows),
        num_inputs=rows.shape[1],
        num_columns=layout.num_inputs,
        num_threads=thread_count(),
    )


def most_likely_by_sketch(x: Array, table: PackedWeight, sketch: Sketch) -> tuple[Array, Array, Array]:
    """What `most_likely` says of all logits of x [T, K]: token ids, int64 [T], and their logits, float32 [T]; and which panels
    were multiplied, int64 [1 + whole panels], the first number how many."""
    layout = sketch.weight.layout
    num_tokens, vocab_size, num_panels = len(x), layout.num_outputs, layout.num_panels
    x = x if x.stride()[1] == 1 else x.contiguous()
    ordered, bounds = _ordered(x, table, sketch)
    estimates = empty_array((num_tokens, vocab_size), DType.FLOAT32)
    linear(ordered, sketch.weight, output=estimates)
    guesses, _ = most_likely(estimates)
    known = empty_array((1 + num_tokens,), DType.INT64)
    module().panels_of(
        current_program(),
        isa=current_instruction_set(),
        token_ids=guesses.data_ptr(),
        panels=known.data_ptr(),
        num_tokens=num_tokens,
    )
    logits = empty_array((num_tokens, vocab_size), DType.FLOAT32)
    linear(x, table, output=logits, panels=known)
    panels, scratch = (empty_array((count,), DType.INT64) for count in (1 + num_panels, num_panels + thread_count()))
    module().within_reach(
        current_program(),
        isa=current_instruction_set(),
        estimates=estimates.data_ptr(),
        logits=logits.data_ptr(),
        lacks=sketch.lacks.data_ptr(),
        sizes=sketch.sizes.data_ptr(),
        bounds=bounds.data_ptr(),
        known=known.data_ptr(),
        panels=panels.data_ptr(),
        scratch=scratch.data_ptr(),
        num_tokens=num_tokens,
        vocab_size=vocab_size,
        num_threads=thread_count(),
    )
    linear(x, table, output=logits, panels=panels)
    token_ids, largest = empty_array((num_tokens,), DType.INT64), empty_array((num_tokens,), DType.FLOAT32)
    module().most_likely_of(
        current_program(),
        isa=current_instruction_set(),
        logits=logits.data_ptr(),
        panels=panels.data_ptr(),
        token_ids=token_ids.data_ptr(),
        largest=largest.data_ptr(),
        num_tokens=num_tokens,
        vocab_size=vocab_size,
    )
    return token_ids, largest, panels


def _ordered(x: Array, table: PackedWeight, sketch: Sketch) -> tuple[Array, Array]:
    """x in the sketch's order, float32 [T, W], and what bounds the estimates made of it, float32 [T, 2]."""
    width = sketch.weight.layout.num_inputs
    ordered, bounds = empty_array((len(x), width), DType.FLOAT32), empty_array((len(x), 2), DType.FLOAT32)
    module().sketch_inputs(
        current_program(),
        isa=current_instruction_set(),
        x=x.data_ptr(),
        x_stride=x.stride()[0],
        bfloat16=is_bfloat16(x),
        columns=sketch.columns.data_ptr(),
        y=ordered.data_ptr(),
        bounds=bounds.data_ptr(),
        num_tokens=len(x),
        num_inputs=x.shape[1],
        num_columns=width,
        group_size=table.layout.group_size if isinstance(table, QuantizedPanels) else 0,
        rotated=isinstance(table, QuantizedPanels) and table.layout.rotated,
        num_threads=thread_count(),
    )
    return ordered, bounds
