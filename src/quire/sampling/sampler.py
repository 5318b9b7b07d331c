"""The sampler: one token for each row of logits, every row on its own.

A row's token and logprobs are functions of its logits, its params, its token ids and its seed: bit for bit the same
alone, at any index of a batch of any size, and beside neighbours of any kind (ADR 5).

Shapes: L rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import msgspec
import numpy as np

from quire.core.arrays import Float32Array
from quire.core.step import SampleError, TokenLogprobs
from quire.sampling.backend import SamplingBackend
from quire.sampling.distribution import MostLikely, most_likely
from quire.sampling.grammar import RowError
from quire.sampling.penalties import PenalizedLogits
from quire.sampling.sampling_row import SamplingRow

__all__ = ["SampledToken", "Sampler", "SamplingRow"]

_NOT_FINITE = (
    "The model's logits at position {position} are not finite, so no token can be sampled;"
    " use a wider dtype or check the weights."
)
_NOTHING_LEFT = (
    "No token can be sampled at position {position}: allowed_token_ids, bad_words, min_tokens, structured_outputs,"
    " logit_bias and the penalties leave none with a finite logit; relax them."
)


class SampledToken(msgspec.Struct, frozen=True):
    """One row's outcome. With an `error` nothing was sampled: `token_id` means nothing and there are no logprobs."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: SampleError | None = None


class Sampler:
    """Chooses tokens on the host."""

    def __init__(self, vocab_size: int, backend: SamplingBackend) -> None:
        self._vocab_size = vocab_size
        self._backend = backend

    def sample(
        self, logits: Float32Array, rows: list[SamplingRow], best: MostLikely | None = None
    ) -> list[SampledToken]:
        """One outcome per row of logits, float32 [L, V]; the logits are left as they are. `best`: of these, if it is known."""
        if not rows:
            return []
        best = best or most_likely(logits)
        taken = self.take(best, rows)
        if taken is not None:
            return [SampledToken(token_id) for token_id in taken]
        assert logits.shape == (len(rows), self._vocab_size), (logits.shape, len(rows), self._vocab_size)
        choices = _Choices(logits, rows, best)
        choices.process(self._backend)
        choices.draw(self._backend)
        return choices.outcomes(self._backend)

    def take(self, best: MostLikely, rows: list[SamplingRow]) -> list[int] | None:
        """The most likely tokens, where every row takes its own; None where that needs a look at the logits."""
        for row, logit in zip(rows, best.logits, strict=True):
            if not row.takes_most_likely or not isfinite(logit):
                return None
        return best.token_ids

    def prompt_logprobs(self, logits: Float32Array, token_ids: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
        """For each position of float32 [N, V], the logprob of `token_ids[i]`, and the `num_logprobs` most likely tokens."""
        return self._backend.logprobs(list(logits), token_ids, [num_logprobs] * len(token_ids))


class _Choices:
    """The batch while it is being decided: every row starts with its most likely token, and rows that draw replace it."""

    def __init__(self, logits: Float32Array, rows: list[SamplingRow], best: MostLikely) -> None:
        self._logits = logits
        self._rows = rows
        self._processed: dict[int, Float32Array] = {}
        self._largest = list(best.logits)
        self._token_ids = best.token_ids.copy()
        self._errors: dict[int, SampleError] = {}
        for i, logit in enumerate(self._largest):
            if not isfinite(logit):
                self._errors[i] = SampleError("not_finite", _NOT_FINITE.format(position=len(rows[i].token_ids)))

    def process(self, backend: SamplingBackend) -> None:
        """Give rows with processors or penalties logits of their own, and look again for the most likely token."""
        changed = [i for i, row in enumerate(self._rows) if row.changes_logits and i not in self._errors]
        places = np.empty((len(changed), self._logits.shape[1]), np.float32)
        rows: dict[int, PenalizedLogits] = {}
        for i, own in zip(changed, places, strict=True):
            try:
                rows[i] = PenalizedLogits(self._processed_into(own, i), own, self._rows[i].penalties)
            except RowError as error:
                self._errors[i] = SampleError("grammar", str(error))
        if not rows:
            return
        self._processed = {i: row.own for i, row in rows.items()}
        best = backend.penalize(list(rows.values()))
        for i, self._token_ids[i], self._largest[i] in zip(rows, best.token_ids, best.logits, strict=True):
            if not isfinite(self._largest[i]):
                self._errors[i] = SampleError(
                    "nothing_left", _NOTHING_LEFT.format(position=len(self._rows[i].token_ids))
                )

    def _processed_into(self, own: Float32Array, i: int) -> Float32Array:
        """Row i's logits, processed if it has processors: then they are in `own`."""
        logits: Float32Array = self._logits[i]
        if not self._rows[i].processors:
            return logits
        own[:] = logits
        for processor in self._rows[i].processors:
            processor.apply(own)
        return own

    def draw(self, backend: SamplingBackend) -> None:
        """Of the rows that leave their token to chance."""
        drawing = [i for i, row in enumerate(self._rows) if not row.params.greedy and i not in self._errors]
        if not drawing:
            return
        logits = [self._processed.get(i, self._logits[i]) for i in drawing]
        largest, rows = [self._largest[i] for i in drawing], [self._rows[i] for i in drawing]
        for i, token_id in zip(drawing, backend.draw(logits, largest, rows), strict=True):
            self._token_ids[i] = token_id

    def outcomes(self, backend: SamplingBackend) -> list[SampledToken]:
        logprobs = self._logprobs(backend)
        return [
            SampledToken(token_id, logprobs.get(i), self._errors.get(i)) for i, token_id in enumerate(self._token_ids)
        ]

    def _logprobs(self, backend: SamplingBackend) -> dict[int, TokenLogprobs]:
        """Of rows that want them, by index."""
        wanted = {
            i: row.params.logprobs
            for i, row in enumerate(self._rows)
            if row.params.logprobs is not None and i not in self._errors
        }
        if not wanted:
            return {}
        logits, token_ids = [self._logits[i] for i in wanted], [self._token_ids[i] for i in wanted]
        return dict(zip(wanted, backend.logprobs(logits, token_ids, list(wanted.values())), strict=True))
