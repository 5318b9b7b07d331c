"""From an EmbeddingDelta to what the caller gets, and from vectors to scores."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from quire.core.arrays import Float32Array
from quire.core.embedding import (
    EmbeddingDelta,
    EmbeddingOutput,
    EmbeddingRequest,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from quire.core.outputs import RequestMetrics
from quire.errors import GenerationFailedError, InvalidRequestError


def pooling_output(request: EmbeddingRequest, delta: EmbeddingDelta) -> PoolingRequestOutput:
    """The one output of a request."""
    now = time.monotonic()
    vectors = np.empty(0, np.float32) if delta.vectors is None else delta.vectors.to_array()
    return PoolingRequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=PoolingOutput(vectors[0] if request.pooling_params.task == "embed" and len(vectors) else vectors),
        error=delta.error,
        metrics=RequestMetrics(
            arrival_time=request.arrival_time, first_scheduled_time=delta.first_scheduled_time, finished_time=now
        ),
    )


def vector_of(output: PoolingRequestOutput) -> Float32Array:
    """Raises GenerationFailedError if the text could not be computed."""
    if output.error is not None:
        raise GenerationFailedError(f"The text of request {output.request_id} has no embedding: {output.error}.")
    return output.outputs.data


def embedding_output(output: PoolingRequestOutput) -> EmbeddingRequestOutput:
    """Raises GenerationFailedError if the text could not be computed."""
    return EmbeddingRequestOutput(
        output.request_id, output.prompt, output.prompt_token_ids, EmbeddingOutput(vector_of(output).tolist())
    )


def check_pairs(num_first: int, num_second: int) -> None:
    """One text against one or many, or as many against as many. Raises InvalidRequestError."""
    if num_first == 0 or num_second == 0 or num_first not in (1, num_second):
        raise InvalidRequestError(
            f"There are {num_first} texts to score against {num_second}; give one and at least one, or as many of each.",
            field="text_1",
            value=num_first,
        )


def score_outputs(
    first: Sequence[PoolingRequestOutput], second: Sequence[PoolingRequestOutput]
) -> list[ScoringRequestOutput]:
    """Cosines of the pairs; one `first` stands for as many as there are of `second`. Vectors have length 1."""
    pairs = zip(list(first) * len(second) if len(first) == 1 else first, second, strict=True)
    return [
        ScoringRequestOutput(
            b.request_id,
            a.prompt_token_ids + b.prompt_token_ids,
            ScoringOutput(float(np.clip(np.dot(vector_of(a), vector_of(b)), -1.0, 1.0))),
        )
        for a, b in pairs
    ]
