"""What the scripts here have in common: where they lie, arguments, figures written as JSON, prompts, a process of its own for an
engine, and an executor that computes nothing."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.config import WorkerConfig
from quire.worker.null_executor import NullExecutor

ROOT = Path(__file__).resolve().parents[1]
"""The repository's."""


def argument_parser(description: str | None, *, plot: bool = False) -> argparse.ArgumentParser:
    """A script's own text is its help. `--output` is where `write_json` writes, `--plot` where a picture goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures here, as JSON")
    if plot:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them here, as PNG")
    return parser


def write_json(path: Path | None, figures: object) -> None:
    """Nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")


def random_prompt(rng: random.Random, length: int, vocab_size: int = 40_000) -> list[int]:
    """Token ids below `vocab_size`, without the first ten: some models have their special tokens there."""
    return [rng.randrange(10, vocab_size) for _ in range(length)]


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Threads and memory go when it ends."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def null_executor() -> NullExecutor:
    """Answers at once, so that control alone is measured; of its config it reads nothing."""
    return NullExecutor(
        WorkerConfig(
            model="null",
            dtype="float32",
            kv_cache_dtype="float32",
            backend="torch",
            num_threads=1,
            max_num_seqs=1,
            max_model_len=1,
        )
    )
