"""What a sampling step costs: CPU milliseconds for L rows of 49,152 logits, the best of some calls.

    OMP_NUM_THREADS=1 python -m benchmarks.sampler

CPU time of the process, one thread: on a machine that does other work too, wall time measures the neighbours.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from benchmarks.script import argument_parser, write_json

from quire.core.sampling_params import SamplingParams
from quire.sampling.backend import select_sampling
from quire.sampling.sampler import Sampler, SamplingRow

VOCAB_SIZE = 49_152
BATCHES = (1, 32, 64)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "temperature, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "temperature, top_k 50": {"temperature": 0.8, "top_k": 50},
    "temperature, top_k 50, top_p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
}


def measure(params: SamplingParams, num_rows: int, spread: float, num_calls: int) -> float:
    """Milliseconds for one call; logits are normal with standard deviation `spread`."""
    logits = torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * spread
    rows = [SamplingRow(params, i, [(7 * j + i) % VOCAB_SIZE for j in range(600)], 300, [2]) for i in range(num_rows)]
    sampler = Sampler(VOCAB_SIZE, select_sampling("cpu", VOCAB_SIZE))
    seconds = []
    for _ in range(num_calls):
        start = time.process_time()
        sampler.sample(logits.numpy(), rows)
        seconds.append(time.process_time() - start)
    return 1e3 * min(seconds)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--num-calls", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [(name, fields, 3.0) for name, fields in KINDS.items()]
    kinds.append(("top_p 0.95, nearly flat logits", {"top_p": 0.95}, 0.01))
    print(f"{'':34}" + "".join(f"{f'L={num_rows}':>9}" for num_rows in BATCHES))
    rows = {}
    for name, fields, spread in kinds:
        rows[name] = [measure(SamplingParams(**fields), n, spread, arguments.num_calls) for n in BATCHES]
        print(f"{name:34}" + "".join(f"{ms:9.2f}" for ms in rows[name]), flush=True)
    write_json(arguments.output, {"rows_of_logits": BATCHES, "ms": rows})


if __name__ == "__main__":
    main()
