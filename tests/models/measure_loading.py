"""Run as a program: load a checkpoint and print, as JSON, how much anonymous memory that took at most, and its share.

Arguments: checkpoint, dtype. Pages of the mapped file do not count: the system takes them back when it needs them.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import open_checkpoint
from quire.host.host_memory import memory_for_loading
from quire.kernels.select import select_ops
from quire.models.registry import DECODERS, load_model

SAMPLE_SECONDS = 0.001


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class PeakSampler(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, anonymous_bytes())


def main(reference: str, dtype_name: str) -> None:
    dtype = getattr(torch, dtype_name)
    checkpoint = open_checkpoint(reference)
    torch.zeros(8, 8) @ torch.zeros(8, 8)
    base = anonymous_bytes()
    sampler = PeakSampler()
    sampler.start()
    with memory_for_loading():
        attention = select_backend("torch", dtype, checkpoint.config)
        model = load_model(DECODERS, checkpoint, dtype, select_ops("torch"), attention)
    sampler.done.set()
    sampler.join()
    model_bytes = model.config.num_parameters() * dtype.itemsize
    print(
        json.dumps(
            {"model_bytes": model_bytes, "peak_bytes": sampler.peak - base, "held_bytes": anonymous_bytes() - base}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
