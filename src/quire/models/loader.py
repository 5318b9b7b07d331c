"""From a checkpoint's files into tensors of the model's dtype, a few rows at a time.

Each tensor is compared with the shape its config demands before memory for it is taken, and is converted straight
into its final place, so that loading never holds more than the model and one chunk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.weights import WeightSource
from quire.core.arrays import Float32Array
from quire.errors import CheckpointError
from quire.kernels.array import widened
from quire.kernels.dtype import dtype_of
from quire.kernels.tensor import Numbers, Tensors

CHUNK_BYTES = 256 << 10
"""Of a chunk in float32."""

BUFFERS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias|embeddings\.position_ids)$",
)
"""Tensors that older checkpoints carry though they are no weights: rotary frequencies, causal masks."""

MAX_NAMED = 5
"""Tensors that one message lists."""


class WeightLoader:
    """Hands out each tensor of one checkpoint once.

    `prefix` is what the checkpoint's names may lack: a model saved without its output projection has
    `h.0.ln_1.weight` where the whole model has `transformer.h.0.ln_1.weight`.
    """

    def __init__(self, source: WeightSource, checkpoint: str, tensors: Tensors, dtype: Any, prefix: str) -> None:
        """`tensors` makes those of `dtype`."""
        self.dtype = dtype
        self._tensors = tensors
        self._source = source
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._names = frozenset(source.names())
        self._left = {name for name in self._names if not BUFFERS.search(name)}

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._names

    def check_shape(self, name: str, expected: tuple[int, ...], *, transposed: bool = False) -> None:
        """Raises CheckpointError if there is no such tensor, or if its shape (or its transpose's) is another."""
        stored = self._stored_name(name)
        if stored not in self._names:
            raise CheckpointError(
                f"{self._checkpoint} lacks the tensor {name}, of shape {expected} by its config; fetch the file again."
            )
        found = self._source.info(stored).shape
        demanded = expected[::-1] if transposed else expected
        if found != demanded:
            raise CheckpointError(
                f"{self._checkpoint}: tensor {name} has shape {found}, but its config demands {demanded};"
                " check that config and weights belong together."
            )

    def take(self, name: str, shape: tuple[int, ...], *, offset: float = 0.0) -> Any:
        """A whole tensor, in the model's dtype. Raises CheckpointError (see `fill`)."""
        self.check_shape(name, shape)
        tensor = self._tensors.empty(shape, self.dtype)
        self.fill(tensor, name, offset=offset)
        return tensor

    def floats(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A whole tensor that is no weight. Raises CheckpointError (see `fill`)."""
        self.check_shape(name, shape)
        return np.concatenate(list(self.float_rows(name, max(1, shape[0]), transposed=False)))

    def fill(self, destination: Any, name: str, *, transposed: bool = False, offset: float = 0.0) -> None:
        """Read a tensor into memory of its shape, or, `transposed`, of its transpose's; add `offset` to each element.

        Raises CheckpointError naming the tensor: missing, of another shape, or with values that are not finite.
        """
        self.check_shape(name, tuple(destination.shape), transposed=transposed)
        for start, chunk in self._chunks(name):
            rows = slice(start, start + chunk.shape[0])
            part = destination[:, rows] if transposed else destination[rows]
            self._check_finite(name, chunk, part.dtype)
            dtype = self._source.info(self._stored_name(name)).dtype
            if offset:
                # Added before the value is rounded to the model's dtype.
                chunk, dtype = widened(chunk, dtype) + np.float32(offset), "float32"
            self._tensors.copy(part, chunk.T if transposed else chunk, dtype)
        self._left.discard(self._stored_name(name))

    def blocks(self, name: str, fill: Callable[[BlockRows], bool], *, transposed: bool) -> bool:
        """Give a tensor to `fill` in the file's own blocks, and False where it has none; `fill` says if all are finite.

        Raises CheckpointError naming the tensor if one is not.
        """
        stored = self._stored_name(name)
        rows = self._source.read_blocks(stored, transposed=transposed)
        if rows is None:
            return False
        if not fill(rows):
            raise self._not_finite(name)
        self._left.discard(stored)
        return True

    def float_rows(self, name: str, num_rows: int, *, transposed: bool) -> Iterator[npt.NDArray[np.float32]]:
        """A tensor, or its transpose, as float32, so many rows at a time. Raises CheckpointError (see `fill`)."""
        if transposed:
            whole = np.concatenate(list(self._float_chunks(name))).T
            for start in range(0, len(whole), num_rows):
                yield whole[start : start + num_rows]
        else:
            yield from self._float_chunks(name, num_rows)
        self._left.discard(self._stored_name(name))

    def drop_copy(self, name: str, first: str, shape: tuple[int, ...]) -> None:
        """Accept a second copy of the tensor `first` that the config says is shared.

        Raises CheckpointError if they differ in the model's dtype.
        """
        self.check_shape(name, shape)
        self.check_shape(first, shape)
        for (_, copied), (_, rows) in zip(self._chunks(name), self._chunks(first), strict=True):
            if not np.array_equal(self._rounded(name, copied), self._rounded(first, rows)):
                raise CheckpointError(
                    f"{self._checkpoint}: {name} differs from the token embedding though tie_word_embeddings is true;"
                    " set it to false in config.json to use both."
                )
        self._left.discard(self._stored_name(name))

    def _rounded(self, name: str, chunk: Numbers) -> Float32Array:
        """Rows of a tensor in the model's dtype."""
        rounded = self._tensors.empty(chunk.shape, self.dtype)
        self._tensors.copy(rounded, chunk, self._source.info(self._stored_name(name)).dtype)
        return self._tensors.numbers(rounded)

    def pass_over(self, name: str) -> None:
        """Accept a tensor that the model is known to do without."""
        self._left.discard(self._stored_name(name))

    def finish(self) -> None:
        """Raises CheckpointError if tensors are left that the model has no place for: the config is not theirs."""
        if self._left:
            named = sorted(self._left)[:MAX_NAMED]
            more = f" and {len(self._left) - len(named)} more" if len(self._left) > len(named) else ""
            raise CheckpointError(
                f"{self._checkpoint} has tensors that its config has no place for: {', '.join(named)}{more};"
                " check that config and weights belong together."
            )

    def _stored_name(self, name: str) -> str:
        return name if name in self._names else name.removeprefix(self._prefix)

    def _chunks(self, name: str, num_rows: int | None = None) -> Iterator[tuple[int, Numbers]]:
        """(first row, rows) of a tensor, as WeightSource.read has them; so many rows at a time, or CHUNK_BYTES."""
        stored = self._stored_name(name)
        shape = self._source.info(stored).shape
        step = num_rows or max(1, CHUNK_BYTES // (4 * max(1, math.prod(shape[1:]))))
        for start in range(0, shape[0], step):
            yield start, self._source.read(stored, start, min(start + step, shape[0]))

    def _float_chunks(self, name: str, num_rows: int | None = None) -> Iterator[npt.NDArray[np.float32]]:
        dtype = self._source.info(self._stored_name(name)).dtype
        for _, chunk in self._chunks(name, num_rows):
            self._check_finite(name, chunk, "float32")
            yield widened(chunk, dtype)

    def _check_finite(self, name: str, chunk: Numbers, dtype: Any) -> None:
        """Of what was read, and of what it becomes when rounded to `dtype`."""
        largest = _largest_magnitude(chunk)
        if not math.isfinite(largest):
            raise self._not_finite(name)
        if largest >= BEYOND[dtype_of(dtype)]:
            raise CheckpointError(
                f"{self._checkpoint}: tensor {name} has values beyond the range of {dtype};"
                " load it with dtype bfloat16 or float32."
            )

    def _not_finite(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self._checkpoint}: tensor {name} has values that are infinite or not numbers; fetch the file again."
        )


BEYOND = {"float32": math.inf, "bfloat16": float.fromhex("0x1.ffp127"), "float16": 65520.0}
"""The smallest number that is rounded to infinity."""


def _largest_magnitude(chunk: Numbers) -> float:
    """NaN where there is one. uint16 are the bits of bfloat16: without their signs they are in the order of the numbers."""
    if chunk.size == 0:
        return 0.0
    if chunk.dtype == np.uint16:
        return float(widened((chunk & np.uint16(0x7FFF)).max(keepdims=True), "bfloat16").max())
    low, high = float(chunk.min()), float(chunk.max())
    return max(-low, high) if low == low else low
