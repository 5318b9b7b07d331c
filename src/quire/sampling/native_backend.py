"""Sampling by native kernels, rows side by side (kernels/native_sampling.py)."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.arrays import Float32Array
from quire.core.sampling_params import ALL_LOGPROBS
from quire.core.step import TokenLogprobs
from quire.kernels.native_sampling import DrawnRow, LogprobsRow, PenalizedRow, draw, logprobs, penalize
from quire.sampling.distribution import MostLikely
from quire.sampling.penalties import PenalizedLogits
from quire.sampling.sampling_row import SamplingRow


class NativeSampling:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def penalize(self, rows: Sequence[PenalizedLogits]) -> MostLikely:
        return MostLikely(*penalize([self._penalized(row) for row in rows], self._vocab_size))

    def _penalized(self, row: PenalizedLogits) -> PenalizedRow:
        logits, own, penalties = self._address(row.logits), self._address(row.own), row.penalties
        if penalties is None:
            return PenalizedRow(logits, own, 0, 0, 0, 0.0, 0.0, 1.0)
        counts = penalties.counts
        counts.update()
        token_ids, num_tokens = counts.distinct.buffer_info()
        return PenalizedRow(
            logits,
            own,
            token_ids,
            counts.in_output.buffer_info()[0],
            num_tokens,
            penalties.presence,
            penalties.frequency,
            penalties.repetition,
        )

    def draw(self, logits: Sequence[Float32Array], largest: Sequence[float], rows: Sequence[SamplingRow]) -> list[int]:
        return draw(
            [
                DrawnRow(
                    self._address(own),
                    row.uniform(),
                    row.params.temperature,
                    row.params.min_p,
                    row.params.top_p,
                    row.params.top_k,
                )
                for own, row in zip(logits, rows, strict=True)
            ],
            self._vocab_size,
        )

    def logprobs(
        self, logits: Sequence[Float32Array], token_ids: Sequence[int], nums_logprobs: Sequence[int]
    ) -> list[TokenLogprobs]:
        tops = [self._vocab_size if num == ALL_LOGPROBS else min(num, self._vocab_size) for num in nums_logprobs]
        ids, values, ranks = logprobs(
            [
                LogprobsRow(self._address(own), token_id, num_top)
                for own, token_id, num_top in zip(logits, token_ids, tops, strict=True)
            ],
            self._vocab_size,
        )
        found, first = [], 0
        for rank, num_top in zip(ranks, tops, strict=True):
            last = first + 1 + num_top
            found.append(TokenLogprobs(ids[first:last], values[first:last], [rank, *range(1, num_top + 1)]))
            first = last
        return found

    def _address(self, row: Float32Array) -> int:
        assert row.shape == (self._vocab_size,)
        assert row.dtype == "float32"
        assert row.flags.c_contiguous
        address: int = row.__array_interface__["data"][0]
        return address
