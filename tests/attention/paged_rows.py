"""Sequences with known Q, K and V over a paged cache, run through a backend in any chunks; and the dense answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from quire.attention.backend import AttentionBackend, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.kv_layout import NULL_BLOCK, values_per_head


@dataclass(frozen=True)
class Tokens:
    """One sequence: query [L, num_heads, head_dim], key and value [L, num_kv_heads, head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def __len__(self) -> int:
        return len(self.query)


def make_shape(
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    window: int | None = None,
    logit_softcap: float | None = None,
) -> AttentionShape:
    return AttentionShape(
        layer=0,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=1 / math.sqrt(head_dim),
        window=window,
        logit_softcap=logit_softcap,
    )


def make_tokens(shape: AttentionShape, length: int, seed: int, dtype: torch.dtype = torch.float32) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(length, heads, shape.head_dim, generator=generator).mul_(2).to(dtype)

    return Tokens(draw(shape.num_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads))


class PagedRows:
    """A cache that holds NaN wherever nothing was written, blocks handed out in an order drawn from `seed`.

    `kv_dtype`: the rows' own, or int8, of which the scales are NaN where nothing was written.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        shape: AttentionShape,
        rows: list[Tokens],
        *,
        block_size: int = 4,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.backend, self.shape, self.rows, self.block_size = backend, shape, rows, block_size
        self.kv_dtype = kv_dtype or rows[0].query.dtype
        counts = [-(-len(row) // block_size) for row in rows]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + NULL_BLOCK + 1
        self.tables = [blocks.tolist() for blocks in order.split(counts)]
        width = values_per_head(shape.head_dim, str(self.kv_dtype).removeprefix("torch."))
        cache_shape = (sum(counts) + 1, block_size, shape.num_kv_heads, width)
        # Two bytes of -1 are a NaN in bfloat16.
        poison = torch.full(cache_shape, -1 if self.kv_dtype == torch.int8 else torch.nan, dtype=self.kv_dtype)
        self.cache = LayerKVCache(poison, poison.clone())
        self.num_computed = [0] * len(rows)

    def step(self, num_tokens: dict[int, int], *, last_tokens: bool = False) -> dict[int, torch.Tensor]:
        """Compute the next num_tokens[r] tokens of each row r, in the order given; the attention output of each, or of each
        row's last one."""
        batch = self._batch(num_tokens)
        if last_tokens:
            last = torch.tensor(batch.query_starts[1:]) - 1
            batch = batch.of_last_tokens(lambda x: x.index_select(0, last))
        spans = {r: slice(self.num_computed[r], self.num_computed[r] + n) for r, n in num_tokens.items()}
        query, key, value = (
            torch.cat([getattr(self.rows[r], name)[span] for r, span in spans.items()])
            for name in ("query", "key", "value")
        )
        output = self.backend.attend(query, key, value, self.cache, self.shape, batch)
        for r, n in num_tokens.items():
            self.num_computed[r] += n
        counts = [1] * len(num_tokens) if last_tokens else list(num_tokens.values())
        return dict(zip(num_tokens, output.split(counts), strict=True))

    def run(self, steps: Sequence[dict[int, int]], *, last_tokens: bool = False) -> list[torch.Tensor]:
        """All the steps; the output of each row over all of its tokens, or the last one of each step."""
        parts: list[list[torch.Tensor]] = [[] for _ in self.rows]
        for num_tokens in steps:
            for r, output in self.step(num_tokens, last_tokens=last_tokens).items():
                parts[r].append(output)
        return [torch.cat(row_parts) for row_parts in parts]

    def _batch(self, num_tokens: dict[int, int]) -> ForwardBatch:
        ends, positions, slots = [0], [], []
        for r, n in num_tokens.items():
            row_positions = torch.arange(self.num_computed[r], self.num_computed[r] + n)
            blocks = torch.tensor(self.tables[r])[row_positions // self.block_size]
            positions.append(row_positions)
            slots.append(blocks * self.block_size + row_positions % self.block_size)
            ends.append(ends[-1] + n)
        context_lens = [self.num_computed[r] + n for r, n in num_tokens.items()]
        width = -(-max(context_lens) // self.block_size)
        tables = torch.full((len(num_tokens), width), NULL_BLOCK)
        for i, (r, n) in enumerate(num_tokens.items()):
            first, last = self._blocks_in_use(r, n)
            tables[i, first:last] = torch.tensor(self.tables[r][first:last])
        return ForwardBatch(
            token_ids=torch.zeros(ends[-1], dtype=torch.int64),
            positions=torch.cat(positions),
            query_starts=ends,
            context_lens=context_lens,
            groups=[RowBlocks(tables, torch.cat(slots))],
            layer_groups=[0],
        )

    def _blocks_in_use(self, r: int, n: int) -> tuple[int, int]:
        """Blocks that hold the window before the chunk, and the chunk; a scheduler frees those before."""
        first = 0
        if self.shape.window is not None:
            first = max(0, self.num_computed[r] - self.shape.window + 1) // self.block_size
        return first, -(-(self.num_computed[r] + n) // self.block_size)


def last_of_steps(outputs: Sequence[torch.Tensor], steps: Sequence[dict[int, int]]) -> list[torch.Tensor]:
    """Of each row's output over all of its tokens, the last one of each step."""
    places = [[step[r] for step in steps if r in step] for r in range(len(outputs))]
    return [output[torch.tensor(counts).cumsum(0) - 1] for output, counts in zip(outputs, places, strict=True)]


def as_kept(tokens: Tokens, kv_dtype: torch.dtype) -> Tokens:
    """With K and V as a cache of that dtype gives them back."""
    if kv_dtype != torch.int8:
        return tokens
    return replace(tokens, key=rounded_to_codes(tokens.key, kept=True), value=rounded_to_codes(tokens.value, kept=True))


def rounded_to_codes(x: torch.Tensor, *, kept: bool = False) -> torch.Tensor:
    """float32: multiples of 1/127 of each vector's largest magnitude; of what a cache has `kept`, of the next bfloat16 that is not below."""
    largest = x.float().abs().amax(-1, keepdim=True)
    # A number over a tensor would be that number times a reciprocal: half of the largest, 63.5, would be rounded otherwise.
    scale = largest / torch.full_like(largest, 127)
    factor = torch.full_like(largest, 127) / largest.clamp(min=1e-30)
    if kept:
        scale = (scale.view(torch.int32) + 0xFFFF >> 16 << 16).view(torch.float32)
        factor = torch.ones_like(scale) / scale.clamp(min=1e-30)
    return (x.float() * factor).round() * scale


def dense_attention(tokens: Tokens, shape: AttentionShape, first: int = 0) -> torch.Tensor:
    """Straight from the definition, float64 [L - first, num_heads * head_dim]: of the tokens from `first` on."""
    queries_per_kv = shape.num_heads // shape.num_kv_heads
    key, value = (x.double().repeat_interleave(queries_per_kv, 1) for x in (tokens.key, tokens.value))
    scores = torch.einsum("qhd,khd->hqk", tokens.query[first:].double(), key) * shape.scale
    if shape.logit_softcap is not None:
        scores = torch.tanh(scores / shape.logit_softcap) * shape.logit_softcap
    position = torch.arange(len(tokens))
    visible = position <= position[first:, None]
    if shape.window is not None:
        visible &= position > position[first:, None] - shape.window
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
