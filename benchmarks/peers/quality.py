"""How right each engine is: perplexity of a text, and its greedy tokens against transformers in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.peers.contender import Contender
from benchmarks.peers.process import EngineError
from benchmarks.peers.text import Text

TEXT_TOKENS = 2048
WINDOW = 512
GREEDY_PROMPTS = 4
GREEDY_PROMPT_TOKENS = 128
GREEDY_TOKENS = 40
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Quality:
    """`num_equal` counts, for each prompt, the leading tokens that are the reference's. `sample` is the first answer."""

    perplexity: float | None
    num_equal: list[int]
    sample: list[int]
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def greedy_tokens(contender: Contender, text: Text) -> list[list[int]]:
    """One prompt at a time: this looks at the model, not at the batching."""
    prompts = text.pieces([GREEDY_PROMPT_TOKENS] * GREEDY_PROMPTS, "greedy")
    return [contender.generate([prompt], GREEDY_TOKENS, TIMEOUT_S)[1][0] for prompt in prompts]


def measure_quality(contender: Contender, text: Text, reference: Sequence[Sequence[int]]) -> Quality:
    """Raises EngineError if the engine generates nothing; one that only gives no logprobs has no perplexity."""
    tokens = greedy_tokens(contender, text)
    equal = [num_equal_leading(ours, theirs) for ours, theirs in zip(tokens, reference, strict=True)]
    try:
        found, note = text_perplexity(contender, text), ""
    except EngineError as error:
        found, note = None, f"no perplexity: {error}"
    return Quality(found, equal, tokens[0], note)


def text_perplexity(contender: Contender, text: Text) -> float:
    windows = text.windows(WINDOW, TEXT_TOKENS)
    logprobs = contender.ask({"op": "logprobs", "windows": windows}, TIMEOUT_S)["result"]
    flat = [value for window in logprobs for value in window]
    if len(flat) != TEXT_TOKENS - len(windows):
        raise EngineError(f"{len(flat)} logprobs for {TEXT_TOKENS} tokens in {len(windows)} windows")
    return perplexity(flat)


def perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def num_equal_leading(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = zip(ours, theirs, strict=True)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), len(ours))
