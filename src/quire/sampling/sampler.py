"""The sampler: one token for each row of logits, every row on its own.

A row's token and logprobs are functions of its logits, its params, its token ids and its seed: bit for bit the same
alone, at any index of a batch of any size, and beside neighbours of any kind (ADR 5).

Shapes: L rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import msgspec
import numpy as np

from quire.core.step import NOTHING_LEFT, TokenLogprobs
from quire.sampling.distribution import (
    Float32Array,
    Float64Array,
    MostLikely,
    draw_each,
    draw_one,
    most_likely,
    token_weights,
)
from quire.sampling.grammar import RowError
from quire.sampling.logprobs import log_softmax, token_logprobs
from quire.sampling.sampling_row import SamplingRow
from quire.sampling.truncation import kept_tokens

__all__ = ["SampledToken", "Sampler", "SamplingRow"]

_CHUNK_ELEMENTS = 2**19
"""Float64 weights held at once: 4 MiB, which stay in the cache and bound the memory whatever the batch."""

_NOT_FINITE = (
    "The model's logits at position {position} are not finite, so no token can be sampled;"
    " use a wider dtype or check the weights."
)
_NOTHING_LEFT = (
    NOTHING_LEFT + " at position {position}: allowed_token_ids, bad_words, min_tokens, structured_outputs,"
    " logit_bias and the penalties leave none with a finite logit; relax them."
)


class SampledToken(msgspec.Struct, frozen=True):
    """One row's outcome. With an `error` nothing was sampled: `token_id` means nothing and there are no logprobs."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Chooses tokens on the host."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._chunk_rows = max(1, _CHUNK_ELEMENTS // vocab_size)

    def sample(
        self, logits: Float32Array, rows: list[SamplingRow], best: MostLikely | None = None
    ) -> list[SampledToken]:
        """One outcome per row of logits, float32 [L, V]; the logits are left as they are. `best`: of these, if it is known."""
        if not rows:
            return []
        best = best or most_likely(logits)
        taken = self.take(best, rows)
        if taken is not None:
            return taken
        assert logits.shape == (len(rows), self._vocab_size), (logits.shape, len(rows), self._vocab_size)
        choices = _Choices(logits, rows, best)
        choices.process()
        for chunk in self._chunks(choices.to_draw(truncated=False)):
            choices.draw(chunk)
        for chunk in self._chunks(choices.to_draw(truncated=True)):
            choices.draw_truncated(chunk)
        return choices.outcomes()

    def take(self, best: MostLikely, rows: list[SamplingRow]) -> list[SampledToken] | None:
        """The most likely tokens, where every row takes its own; None where that needs a look at the logits."""
        tokens = []
        for row, token_id, logit in zip(rows, best.token_ids, best.logits, strict=True):
            if not row.takes_most_likely or not isfinite(logit):
                return None
            tokens.append(SampledToken(token_id))
        return tokens

    def _chunks(self, indices: list[int]) -> Iterator[list[int]]:
        for start in range(0, len(indices), self._chunk_rows):
            yield indices[start : start + self._chunk_rows]


class _Choices:
    """The batch while it is being decided: every row starts with its most likely token, and rows that draw replace it."""

    def __init__(self, logits: Float32Array, rows: list[SamplingRow], best: MostLikely) -> None:
        self._logits = logits
        self._rows = rows
        self._processed: dict[int, Float32Array] = {}
        self._largest = np.array(best.logits, np.float32)
        self._token_ids = best.token_ids.copy()
        self._errors: dict[int, str] = {}
        for i in np.flatnonzero(~np.isfinite(self._largest)).tolist():
            self._errors[i] = _NOT_FINITE.format(position=len(rows[i].token_ids))

    def process(self) -> None:
        """Give rows with processors logits of their own, and look again for the most likely token."""
        for i, row in enumerate(self._rows):
            if not row.processors or i in self._errors:
                continue
            own = self._logits[i].copy()
            try:
                for processor in row.processors:
                    processor.apply(own)
            except RowError as error:
                self._errors[i] = str(error)
                continue
            best = int(own.argmax())
            self._processed[i], self._token_ids[i], self._largest[i] = own, best, own[best]
            if not np.isfinite(own[best]):
                self._errors[i] = _NOTHING_LEFT.format(position=len(row.token_ids))

    def to_draw(self, *, truncated: bool) -> list[int]:
        """Rows that leave their token to chance."""
        return [
            i
            for i, row in enumerate(self._rows)
            if not row.params.greedy and row.truncates is truncated and i not in self._errors
        ]

    def draw(self, chunk: list[int]) -> None:
        """Rows that draw from the whole vocabulary, all at once."""
        token_ids = draw_each(self._weights(chunk), [self._rows[i].uniform() for i in chunk])
        for i, token_id in zip(chunk, token_ids, strict=True):
            self._token_ids[i] = token_id

    def draw_truncated(self, chunk: list[int]) -> None:
        """Rows that draw from the likely tokens only, one by one."""
        for i, weights in zip(chunk, self._weights(chunk), strict=True):
            row = self._rows[i]
            ids, kept = kept_tokens(weights, row.params.top_k, row.params.top_p, row.params.min_p)
            self._token_ids[i] = int(ids[draw_one(kept, row.uniform())])

    def outcomes(self) -> list[SampledToken]:
        return [
            SampledToken(token_id, self._row_logprobs(i, token_id), self._errors.get(i))
            for i, token_id in enumerate(self._token_ids)
        ]

    def _weights(self, chunk: list[int]) -> Float64Array:
        logits = [self._processed.get(i, self._logits[i]) for i in chunk]
        return token_weights(logits, self._largest[chunk], [self._rows[i].params.temperature for i in chunk])

    def _row_logprobs(self, i: int, token_id: int) -> TokenLogprobs | None:
        num_logprobs = self._rows[i].params.logprobs
        if num_logprobs is None or i in self._errors:
            return None
        return token_logprobs(self._logits[i], log_softmax(self._logits[i]), token_id, num_logprobs)
