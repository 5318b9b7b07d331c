"""What generation_config.json says beside config.json: more ends of a text. How to sample is each request's own to say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.small_file import read_json
from quire.core.sampling_params import SamplingParams

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    eos_token_ids: tuple[int, ...]
    notes: tuple[str, ...]
    """A line for each kind of what is left unused."""


def read_generation_config(path: Path, vocab_size: int) -> GenerationConfig:
    """Empty if there is no such file. Raises CheckpointError."""
    content = read_json(path)
    ends = ConfigFields(content, str(path)).token_ids("eos_token_id")
    notes = []
    beyond = [token_id for token_id in ends if token_id >= vocab_size]
    if beyond:
        ids = ", ".join(map(str, beyond))
        notes.append(f"{path}: eos_token_id {ids} is left out: the model's vocabulary has {vocab_size} tokens.")
    defaults = msgspec.structs.asdict(SamplingParams())
    given = {name: content[name] for name in SAMPLING_FIELDS if isinstance(content.get(name), int | float)}
    unused = [f"{name} {value}" for name, value in given.items() if value != defaults[name]]
    if unused:
        notes.append(f"{path}: {', '.join(unused)} left unused; send them with the requests that are to have them.")
    return GenerationConfig(tuple(token_id for token_id in ends if token_id < vocab_size), tuple(notes))
