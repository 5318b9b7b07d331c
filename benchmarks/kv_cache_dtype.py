"""Native attention and the cache's writes with K and V in the model's dtype and in int8: medians in microseconds a layer.

Each layer has a cache of its own, as in a model: what a decode reads comes from memory, not from the processor's caches.

python -m benchmarks.kv_cache_dtype --threads 2
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.kernels import ATTENTION_SHAPES, make_step, measure
from benchmarks.script import argument_parser, write_json

from quire.attention.backend import AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.core.kv_layout import values_per_head
from quire.kernels import native_attention, native_module

NUM_LAYERS = 30
STEPS: dict[str, list[tuple[int, int]]] = {  # (start, new tokens) of each row
    "decode 1 row at 2048": [(2047, 1)],
    "decode 32 rows at 400": [(399, 1)] * 32,
    "prefill 2048": [(0, 2048)],
}
KV_DTYPES = {"auto": None, "int8": torch.int8}


def layer(
    shape: AttentionShape, batch: ForwardBatch, cache: LayerKVCache
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Attention and writes of one layer; its cache is filled."""
    dtype = torch.bfloat16 if cache.key.dtype == torch.int8 else cache.key.dtype
    query = torch.randn(batch.num_tokens, shape.num_heads, shape.head_dim).to(dtype)
    key, value = torch.randn(2, batch.num_tokens, shape.num_kv_heads, shape.head_dim).to(dtype)
    rows = batch.groups[0]
    starts, lens = torch.tensor(batch.query_starts), torch.tensor(batch.context_lens)

    def attend() -> object:
        return native_attention.paged_attention(
            query,
            cache.key,
            cache.value,
            rows.block_tables,
            starts,
            lens,
            scale=shape.scale,
            window=shape.window,
        )

    def write() -> object:
        return native_attention.write_kv(key, value, cache.key, cache.value, rows.slots)

    return attend, write


def filled(cache: LayerKVCache, shape: AttentionShape, kv_dtype: torch.dtype | None) -> LayerKVCache:
    """A cache of the same size of that dtype, all of its slots written."""
    if kv_dtype is None:
        return LayerKVCache(cache.key.clone(), cache.value.clone())
    width = values_per_head(shape.head_dim, "int8")
    codes = LayerKVCache(*(torch.zeros(*cache.key.shape[:3], width, dtype=kv_dtype) for _ in range(2)))
    slots = torch.arange(cache.key.shape[0] * cache.key.shape[1])
    native_attention.write_kv(cache.key.flatten(0, 1), cache.value.flatten(0, 1), codes.key, codes.value, slots)
    return codes


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--layers", type=int, default=NUM_LAYERS, help="1: all of it stays in the caches")
    parser.add_argument("--instruction-set", choices=native_module.instruction_sets())
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each case")
    arguments = parser.parse_args()
    native_module.use_num_threads(arguments.threads)
    native_module.use_instruction_set(arguments.instruction_set)
    torch.manual_seed(0)
    rows = []
    for model, shape in ATTENTION_SHAPES.items():
        for step, spans in STEPS.items():
            batch, cache = make_step(spans, shape, torch.bfloat16)
            functions: dict[str, Callable[[], object]] = {}
            for name, kv_dtype in KV_DTYPES.items():
                caches = [filled(cache, shape, kv_dtype) for _ in range(arguments.layers)]
                layers = [layer(shape, batch, kept) for kept in caches]
                functions[f"attention_{name}"] = lambda layers=layers: [attend() for attend, _ in layers]
                functions[f"write_{name}"] = lambda layers=layers: [write() for _, write in layers]
            found = {name: us / arguments.layers for name, us in measure(functions, arguments.seconds).items()}
            print(f"{model:15} {step:22}", *(f"{name} {us:9.1f}" for name, us in found.items()), sep="  ", flush=True)
            rows.append({"model": model, "step": step, **found})
    write_json(arguments.output, rows)


if __name__ == "__main__":
    main()
