"""What the native methods' weights consist of: pieces of memory, each of which a few words describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels, PackedWeight, dense_shape
from quire.kernels.panels import PanelLayout, QuantizedPanels
from quire.kernels.weight_memory import empty_weight
from quire.quantization.few_bits import Segment


class Piece(msgspec.Struct, frozen=True):
    """Outputs [first, last) of a layer: floats of `dtype`, or few bits with a `layout`.

    `alone`: it is the weight itself, not one of a list of segments.
    """

    first: int
    last: int
    num_inputs: int
    alone: bool
    dtype: str | None = None
    layout: PanelLayout | None = None


def pieces_of(weight: Any) -> list[tuple[Piece, Array]]:
    """Of DensePanels, a QuantizedPanels, or a list of segments of these."""
    if isinstance(weight, list):
        return [_piece(segment.weight, segment.first, alone=False) for segment in weight]
    return [_piece(weight, 0, alone=True)]


def weight_of(pieces: Sequence[Piece], memories: Sequence[Array]) -> Any:
    """The weight whose `pieces_of` these are."""
    made = [_weight(piece, memory) for piece, memory in zip(pieces, memories, strict=True)]
    if pieces[0].alone:
        return made[0]
    return [Segment(piece.first, piece.last, weight) for piece, weight in zip(pieces, made, strict=True)]


def empty_piece(piece: Piece) -> Array:
    """Memory for it."""
    if piece.layout is not None:
        return empty_weight((piece.layout.num_panels, piece.layout.panel_bytes), DType.UINT8)
    assert piece.dtype is not None
    dtype = DType(piece.dtype)
    return empty_weight(dense_shape(piece.last - piece.first, piece.num_inputs, dtype), dtype)


def _piece(weight: PackedWeight, first: int, *, alone: bool) -> tuple[Piece, Array]:
    last = first + weight.num_outputs
    if isinstance(weight, QuantizedPanels):
        return Piece(first, last, weight.num_inputs, alone, layout=weight.layout), weight.panels
    return Piece(first, last, weight.num_inputs, alone, dtype=str(weight.dtype)), weight.memory


def _weight(piece: Piece, memory: Array) -> PackedWeight:
    if piece.layout is not None:
        return QuantizedPanels(memory, piece.layout)
    return DensePanels(memory, piece.last - piece.first, piece.num_inputs)
