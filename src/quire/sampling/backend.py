"""What looks at whole rows of logits: penalties, draws and logprobs, in numpy or in native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from quire.core.arrays import Float32Array
from quire.core.places import load_place
from quire.core.step import TokenLogprobs
from quire.sampling.distribution import MostLikely
from quire.sampling.penalties import PenalizedLogits
from quire.sampling.sampling_row import SamplingRow


class SamplingBackend(Protocol):
    """Each row's result is a function of the row alone. Rows are contiguous float32 [V]."""

    def penalize(self, rows: Sequence[PenalizedLogits]) -> MostLikely:
        """Put each row into its own place. Returns the most likely tokens of what is there then."""

    def draw(self, logits: Sequence[Float32Array], largest: Sequence[float], rows: Sequence[SamplingRow]) -> list[int]:
        """A token id for each row that leaves its token to chance. `largest`: of the row's logits, a finite number."""

    def logprobs(
        self, logits: Sequence[Float32Array], token_ids: Sequence[int], nums_logprobs: Sequence[int]
    ) -> list[TokenLogprobs]:
        """The logprob and rank of a token of each row, and the row's `num_logprobs` most likely tokens."""


SAMPLING = {
    "cpu": "quire.sampling.native_backend:NativeSampling",
    "torch": "quire.sampling.numpy_backend:NumpySampling",
    "reference": "quire.sampling.numpy_backend:NumpySampling",
}
"""For each backend of the engine. Named by string: only `cpu` needs the native module."""


def select_sampling(backend: str, vocab_size: int) -> SamplingBackend:
    return cast(SamplingBackend, load_place(SAMPLING[backend])(vocab_size))
