"""The tensor types quire reads. Support for one more is a layout, a function and a line in BLOCK_TYPES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf import blocks_of_32, plain_types, super_blocks

Dequantize = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
"""N blocks to [N, values per block]."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How the values of a tensor are stored: in blocks of `num_values`, each a `layout` record."""

    number: int
    """The format's number for the type (ggml_type)."""
    name: str
    num_values: int
    layout: np.dtype[Any]
    dequantize: Dequantize

    @property
    def num_bytes(self) -> int:
        """Of one block."""
        return self.layout.itemsize


BLOCK_TYPES = {
    block_type.number: block_type
    for block_type in (
        BlockType(0, "F32", 1, plain_types.F32, plain_types.dequantize_f32),
        BlockType(1, "F16", 1, plain_types.F16, plain_types.dequantize_f16),
        BlockType(2, "Q4_0", 32, blocks_of_32.Q4_0, blocks_of_32.dequantize_q4_0),
        BlockType(3, "Q4_1", 32, blocks_of_32.Q4_1, blocks_of_32.dequantize_q4_1),
        BlockType(6, "Q5_0", 32, blocks_of_32.Q5_0, blocks_of_32.dequantize_q5_0),
        BlockType(7, "Q5_1", 32, blocks_of_32.Q5_1, blocks_of_32.dequantize_q5_1),
        BlockType(8, "Q8_0", 32, blocks_of_32.Q8_0, blocks_of_32.dequantize_q8_0),
        BlockType(10, "Q2_K", 256, super_blocks.Q2_K, super_blocks.dequantize_q2_k),
        BlockType(11, "Q3_K", 256, super_blocks.Q3_K, super_blocks.dequantize_q3_k),
        BlockType(12, "Q4_K", 256, super_blocks.Q4_K, super_blocks.dequantize_q4_k),
        BlockType(13, "Q5_K", 256, super_blocks.Q5_K, super_blocks.dequantize_q5_k),
        BlockType(14, "Q6_K", 256, super_blocks.Q6_K, super_blocks.dequantize_q6_k),
        BlockType(20, "IQ4_NL", 32, blocks_of_32.IQ4_NL, blocks_of_32.dequantize_iq4_nl),
        BlockType(30, "BF16", 1, plain_types.BF16, plain_types.dequantize_bf16),
    )
}

UNREAD_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Types the format has and quire does not read, by name for the message that says so."""
