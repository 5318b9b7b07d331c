"""How right each engine is: perplexity of a text, and its greedy tokens, against the same weights in float32."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.contender import Contender, make_room, one_line
from benchmarks.peers.process import EngineError
from benchmarks.peers.record import Record
from benchmarks.peers.text import Text

TEXT_TOKENS = 4096
WINDOW = 512
GREEDY_PROMPTS = 4
GREEDY_PROMPT_TOKENS = 128
GREEDY_TOKENS = 40
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Reference:
    """What float32 of the same weights says: the perplexity, and the greedy tokens after each prompt."""

    perplexity: float
    tokens: list[list[int]]


@dataclass(frozen=True, slots=True)
class Quality:
    """`change` is that of the perplexity against float32's, as a share of it. `num_equal` counts, for each prompt, the
    leading tokens that are the reference's. `sample` is the first answer."""

    perplexity: float | None
    change: float | None
    num_equal: list[int]
    sample: list[int]
    note: str = ""


def check_quality(
    reference: Reference | None, contenders: Sequence[Contender], text: Text, num_tokens: int, record: Record
) -> None:
    """Each engine once, before any case: the figures of all its cases are held against this. `num_tokens` of the text
    count for the perplexity. Without a reference there is nothing to hold it against."""
    for contender in contenders:
        make_room(contender, (other for other in contenders if other is not contender))
        start = time.perf_counter()
        try:
            quality = measure_quality(contender, text, num_tokens, reference)
        except Exception as error:
            print(f"quality: {contender.name}: {one_line(error)}", flush=True)
            record.skip("quality", contender.name, one_line(error))
            continue
        finally:
            contender.freeze()
        record.quality[contender.name] = asdict(quality)
        seconds = time.perf_counter() - start
        print(
            f"quality: {contender.name:<20} {describe(quality)}, equal {quality.num_equal}, in {seconds:.1f} s",
            flush=True,
        )


def describe(quality: Quality) -> str:
    if quality.perplexity is None:
        return quality.note
    change = "" if quality.change is None else f" ({quality.change:+.2%})"
    return f"perplexity {quality.perplexity:.3f}{change}"


def measure_quality(contender: Contender, text: Text, num_tokens: int, reference: Reference | None) -> Quality:
    """Raises EngineError if the engine generates nothing; one that only gives no logprobs has no perplexity."""
    tokens = greedy_tokens(contender, text)
    pairs = [] if reference is None else zip(tokens, reference.tokens, strict=True)
    equal = [num_equal_leading(ours, theirs) for ours, theirs in pairs]
    try:
        found, note = text_perplexity(contender, text, num_tokens), ""
    except EngineError as error:
        found, note = None, f"no perplexity: {error}"
    change = None if found is None or reference is None else found / reference.perplexity - 1
    return Quality(found, change, equal, tokens[0], note)


def read_reference(contender: Contender, text: Text, num_tokens: int, folder: Path) -> Reference:
    """That of float32 is measured once and kept in `folder`, unless it is quire's own, which changes with the code. Raises
    EngineError."""
    path = folder / f"reference-{reference_key(contender, text, num_tokens)}.json"
    if path.exists():
        return Reference(**json.loads(path.read_text()))
    try:
        tokens = greedy_tokens(contender, text)
        found = Reference(text_perplexity(contender, text, num_tokens), tokens)
    finally:
        contender.stop()
    if contender.peer.install is not None:
        path.write_text(json.dumps(asdict(found)))
    return found


def reference_key(contender: Contender, text: Text, num_tokens: int) -> str:
    """Of everything that the reference depends on."""
    weights = contender.weights
    files = [weights] if weights.is_file() else sorted(path for path in weights.iterdir() if path.is_file())
    known = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    sizes = (num_tokens, WINDOW, GREEDY_PROMPTS, GREEDY_PROMPT_TOKENS, GREEDY_TOKENS)
    parts = (contender.name, contender.how_installed, known, text.begin, text.token_ids, sizes)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def greedy_tokens(contender: Contender, text: Text) -> list[list[int]]:
    """One prompt at a time: this looks at the model, not at the batching."""
    prompts = text.pieces([GREEDY_PROMPT_TOKENS] * GREEDY_PROMPTS, "greedy")
    return [contender.generate([prompt], GREEDY_TOKENS, TIMEOUT_S)[1][0] for prompt in prompts]


def text_perplexity(contender: Contender, text: Text, num_tokens: int) -> float:
    windows = text.windows(WINDOW, num_tokens)
    timeout_s = TIMEOUT_S * max(1.0, num_tokens / TEXT_TOKENS)
    logprobs = contender.ask({"op": "logprobs", "windows": windows}, timeout_s)["result"]
    flat = [value for window in logprobs for value in window]
    if len(flat) != len(windows) * (WINDOW - 1):
        raise EngineError(f"{len(flat)} logprobs for {len(windows)} windows of {WINDOW} tokens")
    return perplexity(flat)


def perplexity(logprobs: Sequence[float]) -> float:
    """Infinite where a token is given no chance, or a number that is none."""
    mean = -sum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else math.inf


def num_equal_leading(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = zip(ours, theirs, strict=True)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), len(ours))
