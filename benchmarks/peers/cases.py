"""The cases: what each asks of an engine, and the figures that come of it.

a one stream; b prefill; c many requests at once; d requests that share a prefix; e the start; f serving over HTTP.
A case's pieces of text depend on the round alone, so all engines get the same ones, and no round repeats another's
prompts: what an engine kept from earlier rounds helps it nowhere but in the warm half of d.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.text import Text, lengths_with_total

Figures = dict[str, float]
Generate = Callable[[list[list[int]], int], float]
"""Prompts and how many tokens to continue each by -> seconds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of the report. `key` names it in the runs."""

    key: str
    label: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens and requests of all cases."""

    prompt: int
    output: int
    prefill: int
    batch: tuple[int, ...]
    batch_output: int
    sharing: int
    shared: int
    own: int
    sharing_output: int
    served: int
    served_prompt: int
    served_output: int
    request_rate: float
    start_prompt: int = 8


FULL = Sizes(
    prompt=128,
    output=256,
    prefill=2048,
    batch=tuple(lengths_with_total(32, 128, 512, 10_135)),
    batch_output=128,
    sharing=16,
    shared=1024,
    own=32,
    sharing_output=32,
    served=64,
    served_prompt=256,
    served_output=64,
    request_rate=2.0,
)
QUICK = Sizes(
    prompt=32,
    output=16,
    prefill=256,
    batch=tuple(lengths_with_total(4, 16, 64, 160)),
    batch_output=8,
    sharing=4,
    shared=128,
    own=16,
    sharing_output=8,
    served=8,
    served_prompt=32,
    served_output=8,
    request_rate=4.0,
)
"""A look whether everything runs; its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """`limit_s` is what one engine may take for its warm-up and all rounds. `run` is None where the orchestrator starts
    processes of its own (e, f)."""

    letter: str
    title: str
    figures: tuple[Figure, ...]
    limit_s: float
    run: Callable[[Generate, Text, Sizes, str], Figures] | None = None


def one_stream(generate: Generate, text: Text, sizes: Sizes, seed: str) -> Figures:
    """TTFT is that of a call for one token. Decode leaves it out of the longer call's time."""
    *prompts, longer = text.pieces([sizes.prompt] * 4, seed)
    ttft = statistics.median(generate([prompt], 1) for prompt in prompts)
    decode = (sizes.output - 1) / (generate([longer], sizes.output) - ttft)
    return {"decode_tok_s": decode, "ttft_ms": 1000 * ttft}


def prefill(generate: Generate, text: Text, sizes: Sizes, seed: str) -> Figures:
    return {"prefill_tok_s": sizes.prefill / generate(text.pieces([sizes.prefill], seed), 1)}


def batch(generate: Generate, text: Text, sizes: Sizes, seed: str) -> Figures:
    seconds = generate(text.pieces(list(sizes.batch), seed), sizes.batch_output)
    return {"output_tok_s": len(sizes.batch) * sizes.batch_output / seconds}


def shared_prefix(generate: Generate, text: Text, sizes: Sizes, seed: str) -> Figures:
    """Cold: a prefix never seen. Warm: the same one again, with other suffixes."""
    (prefix,) = text.pieces([sizes.shared], seed)
    seconds = [
        generate(
            [prefix + own for own in text.pieces([sizes.own] * sizes.sharing, f"{seed} {visit}")], sizes.sharing_output
        )
        for visit in ("cold", "warm")
    ]
    return {"cold_s": seconds[0], "warm_s": seconds[1]}


CASES = {
    case.letter: case
    for case in (
        Case(
            "a",
            "one stream, 128 → 256",
            (Figure("decode_tok_s", "decode tok/s", True), Figure("ttft_ms", "TTFT ms", False)),
            120,
            one_stream,
        ),
        Case("b", "prefill, 2,048 → 1", (Figure("prefill_tok_s", "prefill tok/s", True),), 120, prefill),
        Case("c", "32 requests, 10,135 → 128 each", (Figure("output_tok_s", "output tok/s", True),), 400, batch),
        Case(
            "d",
            "16 × (1,024 shared + 32) → 32",
            (Figure("cold_s", "cold s", False), Figure("warm_s", "warm s", False)),
            300,
            shared_prefix,
        ),
        Case(
            "e",
            "process start → first token",
            (
                Figure("first_token_s", "first token s", False),
                Figure("peak_memory_mb", "peak memory MB", False),
                Figure("served_first_token_s", "through its server s", False),
            ),
            300,
        ),
        Case(
            "f",
            "64 requests over HTTP, 2/s, 256 → 64",
            (
                Figure("ttft_p50_ms", "TTFT p50 ms", False),
                Figure("ttft_p99_ms", "TTFT p99 ms", False),
                Figure("tpot_p50_ms", "TPOT p50 ms", False),
                Figure("tpot_p99_ms", "TPOT p99 ms", False),
                Figure("max_rate", "highest good rate 1/s", True),
            ),
            600,
        ),
    )
}
