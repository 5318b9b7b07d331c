"""What a worker and the orchestrator say to each other: one JSON object a line, over the worker's stdin and stdout.

A worker runs in the environment of its engine, so this file needs nothing but the standard library, and numpy where an engine
gives logits. Requests are
`{"op": "load", "options": {...}}`, `{"op": "generate", "prompts": [[ids]], "num_tokens": n}` and
`{"op": "logprobs", "windows": [[ids]]}`; a closed stdin ends the worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

TokenIds = list[int]


class Engine(Protocol):
    """What each peer's file implements. Everything is greedy and ignores the end of a text."""

    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Make the model ready; returns the versions of what computes."""

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        """Continue all prompts, at once where the engine can, each by exactly `num_tokens` tokens."""

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        """Natural log of the probability of each window's tokens but the first, given those before it."""


def logprobs_of(token_ids: TokenIds, logits: Any) -> list[float]:
    """Natural log of each token's probability; `logits` is an array of numpy, [len(token_ids), vocabulary]."""
    import numpy

    logits = logits.astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[numpy.arange(len(token_ids)), token_ids]
    logprobs: list[float] = (chosen - numpy.log(numpy.exp(logits).sum(-1))).tolist()
    return logprobs


def logprobs_in(outputs: Sequence[Any], windows: list[TokenIds]) -> list[list[float]]:
    """What outputs of vLLM or of quire say of each window's tokens but the first."""
    return [
        [position[token_id].logprob for token_id, position in zip(window[1:], output.prompt_logprobs[1:], strict=True)]
        for window, output in zip(windows, outputs, strict=True)
    ]


def serve(engine: Engine) -> None:
    """Answer requests until stdin closes. What libraries print goes to stderr, away from the replies."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(engine, json.loads(line))
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
    # Some engines crash or hang while they take themselves down; nothing is left to be lost.
    os._exit(0)


def answer(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    match request["op"]:
        case "load":
            result: Any = engine.load(request["options"])
        case "generate":
            result = engine.generate(request["prompts"], request["num_tokens"])
        case "logprobs":
            result = engine.logprobs(request["windows"])
        case other:
            raise ValueError(f"There is no operation {other!r}.")
    return {"seconds": time.perf_counter() - start, "result": result}
