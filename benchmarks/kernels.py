"""Medians of the operators and attention backends on the shapes of SmolLM2-135M and Gemma 3 270M.

python -m benchmarks.kernels --dtype bfloat16 --threads 2
python -m benchmarks.kernels --only attention --output kernels.json
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.script import argument_parser, write_json

from quire.attention.backend import AttentionBackend, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.attention.reference import ReferenceBackend
from quire.attention.torch_backend import TorchBackend
from quire.kernels.select import select_ops

BLOCK_SIZE = 16
LINEAR_SHAPES = {  # inputs, outputs
    "smollm2 qkv": (576, 960),
    "smollm2 o": (576, 576),
    "smollm2 gate_up": (576, 3072),
    "smollm2 down": (1536, 576),
    "smollm2 head": (576, 49152),
    "gemma3 qkv": (640, 1536),
    "gemma3 o": (1024, 640),
    "gemma3 gate_up": (640, 4096),
    "gemma3 down": (2048, 640),
}
NUM_TOKENS = (1, 8, 32, 512, 2048)
MAX_OUTPUT_VALUES = 1 << 25
"""Larger outputs never occur: logits are computed for the few tokens that need them."""
ATTENTION_SHAPES = {
    "smollm2": AttentionShape(
        0, num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125, window=None, logit_softcap=None
    ),
    "gemma3 full": AttentionShape(
        0, num_heads=4, num_kv_heads=1, head_dim=256, scale=0.0625, window=None, logit_softcap=None
    ),
    "gemma3 sliding": AttentionShape(
        0, num_heads=4, num_kv_heads=1, head_dim=256, scale=0.0625, window=512, logit_softcap=None
    ),
}
LENGTHS = random.Random(0).choices(range(128, 641), k=32)
STEPS: dict[str, list[tuple[int, int]]] = {  # (start, new tokens) of each row
    "decode 1 row at 512": [(511, 1)],
    "decode 32 rows at 128-640": [(length - 1, 1) for length in LENGTHS],
    "prefill 2048": [(0, 2048)],
    "chunk of 512 at 1536": [(1536, 512)],
    "32 decodes and a chunk of 480": [*((length - 1, 1) for length in LENGTHS), (0, 480)],
}
Row = dict[str, Any]


def measure(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median microseconds of each, run in turns so that a busy machine slows all alike."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(next(iter(samples.values()))) < 3:
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            samples[name].append((time.perf_counter() - start) * 1e6)
    return {f"{name}_us": round(statistics.median(values), 1) for name, values in samples.items()}


def linear_rows(dtype: torch.dtype, seconds: float) -> list[Row]:
    tables = {name: select_ops(name) for name in ("torch", "reference")}
    rows = []
    for case, (num_inputs, num_outputs) in LINEAR_SHAPES.items():
        weight = torch.randn(num_outputs, num_inputs).to(dtype)
        for num_tokens in NUM_TOKENS:
            if num_tokens * num_outputs > MAX_OUTPUT_VALUES:
                continue
            x = torch.randn(num_tokens, num_inputs).to(dtype)
            functions = {
                name: lambda ops=ops, x=x, weight=weight: ops.linear(x, weight, None) for name, ops in tables.items()
            }
            rows.append({"op": "linear", "case": f"{case}, {num_tokens} tokens", **measure(functions, seconds)})
            print_row(rows[-1])
    return rows


def attention_rows(dtype: torch.dtype, seconds: float) -> list[Row]:
    backends: dict[str, AttentionBackend] = {"torch": TorchBackend(), "reference": ReferenceBackend()}
    rows = []
    for model, shape in ATTENTION_SHAPES.items():
        for step, spans in STEPS.items():
            batch, cache = make_step(spans, shape, dtype)
            query = torch.randn(batch.num_tokens, shape.num_heads, shape.head_dim).to(dtype)
            key, value = torch.randn(2, batch.num_tokens, shape.num_kv_heads, shape.head_dim).to(dtype)
            functions = {
                name: lambda backend=backend, args=(query, key, value, cache, shape, batch): backend.attend(*args)
                for name, backend in backends.items()
            }
            rows.append({"op": "attention", "case": f"{model}, {step}", **measure(functions, seconds)})
            print_row(rows[-1])
    return rows


def make_step(
    spans: list[tuple[int, int]], shape: AttentionShape, dtype: torch.dtype
) -> tuple[ForwardBatch, LayerKVCache]:
    """Rows of these spans over a cache whose blocks were handed out in random order."""
    counts = [-(-(start + n) // BLOCK_SIZE) for start, n in spans]
    blocks = (torch.randperm(sum(counts)) + 1).split(counts)
    tables = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True)
    positions = [torch.arange(start, start + n) for start, n in spans]
    slots = [
        table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for table, at in zip(tables, positions, strict=True)
    ]
    ends = [0]
    for _, n in spans:
        ends.append(ends[-1] + n)
    batch = ForwardBatch(
        token_ids=torch.zeros(ends[-1], dtype=torch.int64),
        positions=torch.cat(positions),
        query_starts=ends,
        context_lens=[start + n for start, n in spans],
        groups=[RowBlocks(tables, torch.cat(slots))],
        layer_groups=[0],
    )
    cache = torch.randn(2, sum(counts) + 1, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim).to(dtype)
    return batch, LayerKVCache(cache[0], cache[1])


def print_row(row: Row) -> None:
    ratio = row["reference_us"] / row["torch_us"]
    print(f"{row['op']:10} {row['case']:48} {row['torch_us']:12,.1f} {row['reference_us']:12,.1f} {ratio:7.1f}x")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=["linear", "attention"])
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent on each case")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    print(f"{arguments.dtype}, {arguments.threads} threads, torch {torch.__version__}; medians in microseconds")
    print(f"{'op':10} {'case':48} {'torch':>12} {'reference':>12}")
    rows = []
    with torch.inference_mode():
        if arguments.only != "attention":
            rows += linear_rows(dtype, arguments.seconds)
        if arguments.only != "linear":
            rows += attention_rows(dtype, arguments.seconds)
    about = {"dtype": arguments.dtype, "threads": arguments.threads, "torch": torch.__version__}
    write_json(arguments.output, {**about, "rows": rows})


if __name__ == "__main__":
    main()
