"""What the requests of a serving benchmark say, by the dataset's name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bench.serve.traces import TraceScale, make_prompt, read_trace
from quire.bench.workloads import BenchRequest, Lengths, dataset_workload, prompt_of, read_rows, turns_of
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

REPLY_ROLES = ("gpt", "assistant", "chatgpt", "bard")


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """Which prompts. `output_len` None takes the length that the dataset itself records."""

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 100
    input_len: Lengths = Lengths(128, 512)
    output_len: Lengths | None = None
    prefix_len: int = 256
    num_prefixes: int = 10
    trace: TraceScale = TraceScale()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ServeWorkload:
    """`arrivals`, in seconds from the start, come from a trace; otherwise the traffic decides."""

    requests: list[BenchRequest]
    arrivals: list[float] | None = None
    num_cut: int = 0
    """Requests that a length limit made shorter than the dataset has them."""


DEFAULT_OUTPUT = Lengths(128, 128)


def make_workload(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """Raises InvalidRequestError if a file is missing, damaged or too short."""
    if choice.name not in DATASETS:
        raise InvalidRequestError(
            f"The dataset must be one of {', '.join(DATASETS)}, got {choice.name!r}.", field="dataset_name"
        )
    return DATASETS[choice.name](choice, tokenizer)


def _file(choice: DatasetChoice) -> Path:
    if choice.path is None:
        raise InvalidRequestError(
            f"The dataset {choice.name} is read from a file: add --dataset-path FILE.", field="dataset_path"
        )
    return choice.path


def _random(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """Nothing shared: every prompt is computed."""
    rng, words = random.Random(choice.seed), _words(tokenizer)  # noqa: S311
    output_len = choice.output_len or DEFAULT_OUTPUT
    return ServeWorkload(
        [
            BenchRequest(rng.choices(words, k=choice.input_len.draw(rng)), output_len.draw(rng))
            for _ in range(choice.num_prompts)
        ]
    )


def _prefix_repetition(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """A few long prefixes, each with many endings (`input_len` tokens), in random order."""
    rng, words = random.Random(choice.seed), _words(tokenizer)  # noqa: S311
    output_len = choice.output_len or DEFAULT_OUTPUT
    prefixes = [rng.choices(words, k=choice.prefix_len) for _ in range(choice.num_prefixes)]
    requests = [
        BenchRequest(
            prefixes[index % len(prefixes)] + rng.choices(words, k=choice.input_len.draw(rng)), output_len.draw(rng)
        )
        for index in range(choice.num_prompts)
    ]
    rng.shuffle(requests)
    return ServeWorkload(requests)


def _text(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """Pieces of one long text."""
    path = _file(choice)
    if path.suffix != ".txt":
        raise InvalidRequestError(f"The dataset sonnet is a .txt file, got {path}.", field="dataset_path")
    output_len = choice.output_len or DEFAULT_OUTPUT
    return ServeWorkload(
        dataset_workload(path, tokenizer, choice.num_prompts, choice.input_len, output_len, choice.seed)
    )


def _recorded(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """Prompts of a .json or .jsonl, in random order, cut to `input_len.high`; outputs as long as the recorded ones."""
    path, rng = _file(choice), random.Random(choice.seed)  # noqa: S311
    pairs = [(prompt, _reply(row)) for row, place in read_rows(path) if (prompt := prompt_of(row, place))]
    rng.shuffle(pairs)
    requests, num_cut = [], 0
    for prompt, reply in pairs[: choice.num_prompts]:
        token_ids = tokenizer.encode(prompt)
        num_cut += len(token_ids) > choice.input_len.high
        if choice.output_len is not None:
            num_output = choice.output_len.draw(rng)
        elif isinstance(reply, str):
            num_output = max(1, len(tokenizer.encode(reply, add_special_tokens=False)))
        else:
            num_output = reply or DEFAULT_OUTPUT.high
        requests.append(BenchRequest(token_ids[: choice.input_len.high], num_output))
    if len(requests) < choice.num_prompts:
        raise InvalidRequestError(
            f"{path} holds {len(requests)} prompts, but {choice.num_prompts} were asked for; lower --num-prompts.",
            field="num_prompts",
            value=choice.num_prompts,
        )
    return ServeWorkload(requests, num_cut=num_cut)


def _reply(row: dict[str, Any]) -> str | int | None:
    """The text or the number of tokens that answers the object's prompt, where it has one."""
    recorded = row.get("output_tokens")
    if isinstance(recorded, int) and recorded > 0:
        return recorded
    return next((text for role, text in turns_of(row) or () if role in REPLY_ROLES and isinstance(text, str)), None)


def _timed_trace(choice: DatasetChoice, tokenizer: Tokenizer) -> ServeWorkload:
    """The first `num_prompts` requests of a trace, or all that it holds, at its times."""
    traced, words = read_trace(_file(choice), choice.num_prompts), _words(tokenizer)
    return ServeWorkload(
        [
            BenchRequest(make_prompt(one, choice.trace, index, words, choice.seed), choice.trace.output_length(one))
            for index, one in enumerate(traced)
        ],
        [one.arrival * choice.trace.time for one in traced],
        sum(choice.trace.cuts(one) for one in traced),
    )


DATASETS: dict[str, Callable[[DatasetChoice, Tokenizer], ServeWorkload]] = {
    "random": _random,
    "prefix_repetition": _prefix_repetition,
    "sonnet": _text,
    "sharegpt": _recorded,
    "custom": _recorded,
    "timed-trace": _timed_trace,
}


def _words(tokenizer: Tokenizer) -> list[int]:
    """Ids that made-up prompts consist of: all but the special ones, which would mean something."""
    return [token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_token_ids]


def fit_to_context(workload: ServeWorkload, max_model_len: int, margin: int) -> ServeWorkload:
    """What does not fit the context with `margin` tokens of a template is cut: outputs to what the prompt leaves, or half of
    the room where that is more, then prompts, at their end."""
    room = max_model_len - margin
    if room < 2:
        raise InvalidRequestError(f"The server's context of {max_model_len} tokens is too short.", field="url")
    requests = []
    for request in workload.requests:
        left = room - len(request.prompt_token_ids)
        num_output = min(request.num_output_tokens, max(room // 2, left))
        requests.append(BenchRequest(request.prompt_token_ids[: room - num_output], num_output))
    num_cut = sum(new != old for new, old in zip(requests, workload.requests, strict=True))
    return ServeWorkload(requests, workload.arrivals, workload.num_cut + num_cut)
