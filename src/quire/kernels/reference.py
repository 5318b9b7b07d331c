"""The oracle: every op in float32, and bitwise independent of the batch (ADR 5).

A row's result has the same bits whatever the other rows are, however many there are, and wherever in the batch the
row stands. Libraries do not promise this: they choose a matrix kernel by its shape, split a long sum over threads,
and compute the last few elements of a buffer with another exponential than the rest. So this table uses three kinds of
arithmetic only:

- additions, multiplications, divisions and square roots element by element: IEEE 754 rounds these one way, wherever
  they run. Norms and rope are made of them; sums over a row are trees of additions (`row_sum`).
- transcendental functions on one row at a time, in a buffer of its own: the shape depends on the model alone.
- matrix products of one constant shape, `LINEAR_TILE` rows, the last ones padded with zeros. There a row may stand at
  any place in the tile, so `linear` first makes sure that the library treats every place alike (`_places_agree`), and
  multiplies row by row where it does not.

The promise is for one machine, one thread count and one version of torch. It holds in bfloat16 and float16 too: those
are widened to float32, computed as above, and rounded once at the end.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from quire.kernels.activation import ACTIVATIONS, softcap_rows
from quire.kernels.torch_tensors import TorchTensors

LINEAR_TILE = 32
"""Rows in one matrix product. Rows of 32 float32 start on cache lines, whatever their width: all tiles align alike."""


class ReferenceOps:
    name = "reference"

    def __init__(self) -> None:
        self.tensors = TorchTensors()

    def use_num_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight.index_select(0, token_ids)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y = self.logits(x, weight)
        if bias is not None:
            y += bias.float()
        return y.to(x.dtype)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        weight_t = weight.float().t()
        num_features, num_outputs = weight_t.shape
        places_agree = _places_agree(num_features, num_outputs, torch.get_num_threads())
        return tiled_matmul(x.float(), weight_t, LINEAR_TILE if places_agree else 1)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        x32 = x.float()
        mean_square = row_sum(x32 * x32) / x.shape[-1]
        y = x32 / torch.sqrt(mean_square + eps) * weight.float()
        return (y if residual is None else residual + y).to(x.dtype)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        x32 = x.float()
        centred = x32 - row_sum(x32) / x.shape[-1]
        variance = row_sum(centred * centred) / x.shape[-1]
        y = centred / torch.sqrt(variance + eps) * weight.float()
        if bias is not None:
            y += bias.float()
        return y.to(x.dtype)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = cos.shape[-1]
        cos32, sin32 = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
        first, second = x[..., :half].float(), x[..., half : 2 * half].float()
        rotated = torch.cat((first * cos32 - second * sin32, second * cos32 + first * sin32), -1)
        return torch.cat((rotated.to(x.dtype), x[..., 2 * half :]), -1)

    def activate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        return self._activate32(x, kind).to(x.dtype)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return (self._activate32(gate, kind) * up.float()).to(gate.dtype)

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        return softcap_rows(logits, cap)

    def _activate32(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        function = ACTIVATIONS[kind]
        rows = x.reshape(-1, x.shape[-1]).unbind()
        return torch.stack([function(row.float().clone()) for row in rows]).view(x.shape)


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension [..., D] -> [..., 1]: the upper half is added to the lower one until one is left."""
    while (width := x.shape[-1]) > 1:
        half = (width + 1) // 2
        total = x[..., :half].clone()
        total[..., : width - half] += x[..., half:]
        x = total
    return x


def tiled_matmul(x: torch.Tensor, weight_t: torch.Tensor, tile: int) -> torch.Tensor:
    """float32 [T, K] @ [K, N], `tile` rows at a time: each product has the same shape, strides and alignment."""
    num_rows = x.shape[0]
    num_tiles = -(-num_rows // tile)
    padded = F.pad(x, (0, 0, 0, num_tiles * tile - num_rows)).contiguous()
    y = x.new_empty(num_tiles * tile, weight_t.shape[1])
    if tile == 1:
        for i in range(num_rows):
            y[i] = (padded[i : i + 1].clone() @ weight_t)[0]
        return y
    for first in range(0, num_tiles * tile, tile):
        torch.mm(padded[first : first + tile], weight_t, out=y[first : first + tile])
    return y[:num_rows]


@cache
def _places_agree(num_features: int, num_outputs: int, num_threads: int) -> bool:
    """Whether a matrix product of this shape gives a row the same bits at every place in the tile.

    Tried once a shape: the same row at every place must give the same result everywhere. Exponents vary widely, so
    that another order of additions shows in at least one of the outputs.
    """
    generator = torch.Generator().manual_seed(num_features)
    row = torch.randn(num_features, generator=generator) * torch.logspace(-2, 2, num_features)
    weight = torch.randn(num_outputs, num_features, generator=generator)
    y = tiled_matmul(row.repeat(LINEAR_TILE, 1), weight.t(), LINEAR_TILE)
    return torch.equal(y, y[:1].expand_as(y))
