"""Embeddings: what is asked for, the steps that compute it, and what the caller gets back. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec
import numpy as np

from quire.core.arrays import Float32Array
from quire.core.outputs import RequestMetrics
from quire.core.sampling_rules import Rule, apply_rules, one_of, optional, true_or_false, whole_number

PoolingTask = Literal["embed", "token_embed"]
WHOLE_CONTEXT = -1


_RULES: dict[str, Rule] = {
    "task": one_of(*get_args(PoolingTask)),
    "normalize": optional(true_or_false),
    "dimensions": optional(whole_number(1, remedy="leave it out for the whole vector")),
    "truncate_prompt_tokens": optional(
        whole_number(
            1,
            remedy="pass -1 for what the model takes, or leave it out",
            aliases={WHOLE_CONTEXT: WHOLE_CONTEXT},
        )
    ),
}


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one text becomes vectors. Raises InvalidRequestError.

    `embed` gives one vector a text, `token_embed` one a token. `normalize` None is as the model was trained.
    `dimensions` keeps the first ones (normalized again), which only models trained for it (Matryoshka) stand well.
    `truncate_prompt_tokens` cuts longer texts to so many tokens, -1 to the longest the model takes; without it they
    are refused.
    """

    task: PoolingTask = "embed"
    normalize: bool | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        apply_rules(self, _RULES)


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One tokenized text. `arrival_time` is monotonic seconds; a smaller `priority` runs first."""

    request_id: str
    prompt_token_ids: list[int]
    pooling_params: PoolingParams
    prompt: str | None = None
    priority: int = 0
    arrival_time: float = 0.0
    tenant: str = ""
    """Whom the work is charged to, for the `fair` scheduling policy."""


class EncodeRow(msgspec.Struct, frozen=True):
    """One whole text of a step."""

    token_ids: list[int]
    params: PoolingParams


class EncodePlan(msgspec.Struct, frozen=True):
    """Texts computed together; nothing outlives the step."""

    step_id: int
    rows: list[EncodeRow]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


class Vectors(msgspec.Struct, frozen=True):
    """`num_vectors` vectors one after the other, as little-endian float32."""

    values: bytes
    num_vectors: int

    def to_array(self) -> Float32Array:
        """Read-only [num_vectors, size]."""
        return np.frombuffer(self.values, "<f4").reshape(self.num_vectors, -1)


class EncodeResult(msgspec.Struct, frozen=True):
    """In the plan's order. A text gets an error (a sentence) where its vectors are not finite."""

    step_id: int
    rows: list[Vectors | str]


class EmbeddingDelta(msgspec.Struct, tag=True):
    """The end of an embedding request: its vectors, or what went wrong. Times are monotonic seconds."""

    request_id: str
    vectors: Vectors | None = None
    error: str | None = None
    first_scheduled_time: float | None = None


@dataclass(slots=True)
class PoolingOutput:
    """float32 [size], or [tokens, size] of the task `token_embed`."""

    data: Float32Array


@dataclass(slots=True)
class PoolingRequestOutput:
    """What `encode` gives. `error` is set, and data empty, where the text could not be computed."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: PoolingOutput
    finished: bool = True
    error: str | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """What `embed` gives."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    finished: bool = True


@dataclass(slots=True)
class ScoringOutput:
    """Cosine of the two texts' vectors, -1 ... 1."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    """What `score` gives; the ids are those of the pair's texts, one after the other."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: ScoringOutput
    finished: bool = True
