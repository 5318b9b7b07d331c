"""Where each code and scale of a panel lies, in numpy: the twin of csrc/packing.cpp and csrc/rounding.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tests.twins.quantized_rows import QuantizedRows

from quire.kernels.panels import PANEL, PanelLayout

UNIT = 4
"""Codes that are multiplied together."""


def layout_of(rows: QuantizedRows, num_outputs: int) -> PanelLayout:
    """For a weight of `num_outputs` such rows."""
    return PanelLayout(
        num_outputs=num_outputs,
        num_inputs=rows.codes.shape[1],
        bits=rows.bits,
        zero=rows.zero,
        group_size=rows.group_size,
        groups_per_block=rows.groups_per_block,
        has_minimum=rows.minimum is not None,
        rotated=rows.rotated,
        inputs_rotated=rows.inputs_rotated,
    )


def fill_panels(panels: npt.NDArray[np.uint8], layout: PanelLayout, rows: QuantizedRows) -> None:
    """Write whole panels: `panels` [n, panel_bytes] for up to 16 n rows; outputs that there are not become zeros."""
    num_panels = len(panels)
    codes_end = layout.num_inputs * PANEL * layout.bits // 8
    panels[:, :codes_end] = _codes(rows, num_panels)
    header = panels[:, layout.header_offset : layout.header_offset + layout.num_blocks * layout.header_bytes]
    parts = [_by_panel(rows.scale, num_panels).view(np.uint8)]
    if rows.minimum is not None:
        parts.append(_by_panel(rows.minimum, num_panels).view(np.uint8))
    if rows.group_scale is not None:
        small = [_by_panel(rows.group_scale, num_panels)]
        if rows.group_minimum is not None:
            small.append(_by_panel(rows.group_minimum, num_panels))
        # [panels, groups, PANEL] each -> a group's scales, then its minima, group by group in each block
        joined = np.concatenate(small, axis=2).reshape(num_panels, layout.num_blocks, -1)
        parts.append(joined.view(np.uint8))
    header[...] = np.concatenate(parts, axis=2).reshape(num_panels, -1)


def _codes(rows: QuantizedRows, num_panels: int) -> npt.NDArray[np.uint8]:
    """[panels, bytes]: unit by unit, four codes of each output."""
    num_units = rows.codes.shape[1] // UNIT
    codes = _padded(rows.codes, num_panels).reshape(num_panels, PANEL, num_units, UNIT).swapaxes(1, 2)
    if rows.bits == 4:
        pairs = codes.reshape(num_panels, num_units // 2, 2, PANEL, UNIT)
        codes = pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))
    return codes.reshape(num_panels, -1)


def _by_panel(numbers: npt.NDArray[Any], num_panels: int) -> npt.NDArray[Any]:
    """[rows, G] -> [panels, G, PANEL]."""
    padded = _padded(numbers, num_panels)
    return np.ascontiguousarray(padded.reshape(num_panels, PANEL, -1).swapaxes(1, 2))


def _padded(numbers: npt.NDArray[Any], num_panels: int) -> npt.NDArray[Any]:
    missing = num_panels * PANEL - len(numbers)
    return np.pad(numbers, ((0, missing), (0, 0))) if missing else numbers
