"""Weights of 4 or 8 bits in the order that the native kernel reads them (csrc/quantized.h): 16 outputs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import CODE_TYPES, BlockRows
from quire.core.arrays import Float32Array
from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.fresh_memory import LINE
from quire.kernels.native_module import current_instruction_set, module, thread_count
from quire.kernels.weight_memory import empty_weight

PANEL = 16
"""Outputs. A panel begins on a cache line, and so do its headers."""


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """How the rows of one weight lie in its panels. Sizes are in bytes."""

    num_outputs: int
    num_inputs: int
    bits: int
    zero: int
    group_size: int
    groups_per_block: int
    has_minimum: bool
    rotated: bool = False
    """Its rows were, and so are those that it is multiplied by (csrc/rotation.h): with 8 bits, one group and no minimum."""
    inputs_rotated: bool = False
    """Where both are, they come so: what it is multiplied by is used as it is, and so are rows that are rounded."""

    @property
    def rotates_inputs(self) -> bool:
        """Whether what it is multiplied by is rotated only then."""
        return self.rotated and not self.inputs_rotated

    @property
    def num_panels(self) -> int:
        return -(-self.num_outputs // PANEL)

    @property
    def header_offset(self) -> int:
        """Where a panel's codes end and its scales begin."""
        return _whole_lines(self.num_inputs * PANEL * self.bits // 8)

    @property
    def panel_bytes(self) -> int:
        return self.header_offset + _whole_lines(self.num_blocks * self.header_bytes)

    @property
    def num_blocks(self) -> int:
        """Of one output."""
        return self.num_inputs // (self.group_size * self.groups_per_block)

    @property
    def header_bytes(self) -> int:
        """Of one block: its float16 scales, and those of its groups, if it has several."""
        small = self.groups_per_block if self.groups_per_block > 1 else 0
        return (2 + small) * PANEL * (2 if self.has_minimum else 1)


@dataclass(frozen=True, slots=True)
class QuantizedPanels:
    """[num_outputs, num_inputs], uint8 [num_panels, panel_bytes]; the first panel begins on a cache line."""

    panels: Array
    layout: PanelLayout

    @property
    def num_outputs(self) -> int:
        return self.layout.num_outputs

    @property
    def num_inputs(self) -> int:
        return self.layout.num_inputs


def empty_panels(layout: PanelLayout) -> QuantizedPanels:
    """Memory for a weight; `pack_blocks` and `round_to_panels` write it."""
    return QuantizedPanels(empty_weight((layout.num_panels, layout.panel_bytes), DType.UINT8), layout)


def empty_part(layout: PanelLayout) -> QuantizedPanels:
    """For what is soon joined with others: memory that goes back at once."""
    return QuantizedPanels(empty_array((layout.num_panels, layout.panel_bytes), DType.UINT8), layout)


def can_follow(first: PanelLayout, second: PanelLayout) -> bool:
    """Whether one weight can hold the outputs of both: their layouts are alike and the first ends with a whole panel."""
    return first.num_outputs % PANEL == 0 and replace(second, num_outputs=first.num_outputs) == first


def join_panels(parts: Sequence[QuantizedPanels]) -> QuantizedPanels:
    """The outputs of all, in order; each of them can follow the one before."""
    assert all(can_follow(before.layout, part.layout) for before, part in pairwise(parts))
    num_outputs = sum(part.layout.num_outputs for part in parts)
    joined = empty_panels(replace(parts[0].layout, num_outputs=num_outputs))
    np.concatenate([part.panels.stored for part in parts], out=joined.panels.stored)
    return joined


def layout_of_blocks(rows: BlockRows) -> PanelLayout:
    code_type = CODE_TYPES[rows.type_name]
    return PanelLayout(
        num_outputs=len(rows.rows),
        num_inputs=rows.num_inputs,
        bits=code_type.bits,
        zero=code_type.zero,
        group_size=code_type.group_size,
        groups_per_block=code_type.groups_per_block,
        has_minimum=code_type.has_minimum,
    )


def pack_blocks(weight: QuantizedPanels, rows: BlockRows) -> bool:
    """The blocks of the file, repacked exactly (csrc/packing.cpp). Whether all scales are finite."""
    assert weight.layout == layout_of_blocks(rows)
    assert rows.blocks.flags.c_contiguous
    assert rows.rows.dtype == np.int64
    assert rows.rows.flags.c_contiguous
    assert ((rows.rows >= 0) & (rows.rows < len(rows.blocks))).all()
    finite: bool = module().pack_blocks(
        type=rows.type_name,
        blocks=rows.blocks.__array_interface__["data"][0],
        row_bytes=rows.blocks.shape[1],
        rows=rows.rows.__array_interface__["data"][0],
        num_rows=len(rows.rows),
        num_blocks=weight.layout.num_blocks,
        panels=weight.panels.data_ptr(),
        panel_bytes=weight.layout.panel_bytes,
        header_offset=weight.layout.header_offset,
        num_threads=thread_count(),
    )
    return finite


def round_to_panels(panels: npt.NDArray[np.uint8], layout: PanelLayout, rows: Float32Array) -> None:
    """Whole panels, uint8 [n, panel_bytes], from up to 16 n rows of a weight, finite float32 [R, K], rounded (csrc/rounding.cpp);
    outputs that there are not become zeros."""
    assert panels.flags.c_contiguous
    assert panels.shape == (-(-len(rows) // PANEL), layout.panel_bytes)
    assert rows.dtype == np.float32
    assert rows.shape[1] == layout.num_inputs
    assert layout.groups_per_block == 1
    assert layout.group_size % 32 == 0
    assert layout.num_inputs % layout.group_size == 0
    rows = np.ascontiguousarray(rows)
    module().round_rows(
        isa=current_instruction_set(),
        rows=rows.__array_interface__["data"][0],
        panels=panels.__array_interface__["data"][0],
        panel_bytes=layout.panel_bytes,
        header_offset=layout.header_offset,
        num_rows=len(rows),
        num_inputs=layout.num_inputs,
        group_size=layout.group_size,
        bits=layout.bits,
        has_minimum=layout.has_minimum,
        rotated=layout.rotates_inputs,
        num_threads=thread_count(),
    )


def _whole_lines(num_bytes: int) -> int:
    return -(-num_bytes // LINE) * LINE
