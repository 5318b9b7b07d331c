"""A request's sequences and how they turn into deltas: one small protocol, a file for each way of decoding."""

from __future__ import annotations

import functools
from typing import Protocol

import msgspec

from quire.core.request import Request
from quire.core.sequence import FinishReason, Sequence
from quire.core.wire import Delta
from quire.scheduler.scheduler import RowUpdate


class SequenceGroup(Protocol):
    """Adds, forks and releases sequences through the scheduler; the engine knows nothing of how."""

    request_id: str

    def start(self) -> None:
        """Add the first sequence."""

    def advance(self, update: RowUpdate) -> list[Delta]:
        """One of the group's sequences moved on."""

    def finish_sample(self, index: int, stop_reason: str) -> None:
        """End one sample because its text holds a stop string."""

    def abort(self, reason: FinishReason) -> None:
        """End everything and give back every block."""

    @property
    def finished(self) -> bool: ...


def make_sequence(
    request: Request,
    seq_id: int,
    *,
    token_ids: list[int] | None = None,
    max_num_tokens: int | None = None,
    index: int = 0,
    seed: int | None = None,
    keep_blocks: bool = False,
) -> Sequence:
    """A sequence of this request: over its prompt unless `token_ids` says otherwise."""
    params = request.sampling_params
    if index > 0 and params.prompt_logprobs is not None:
        # The first sample has them; another one that computes the prompt again would find them once more, and no cached prefix.
        params = msgspec.structs.replace(params, prompt_logprobs=None)
    # The end of text is part of a grammar, and its only end.
    ignores_eos = params.ignore_eos and params.structured_outputs is None
    stop_token_ids = _eos_set(() if ignores_eos else tuple(request.eos_token_ids))
    if params.stop_token_ids:
        stop_token_ids = stop_token_ids.union(params.stop_token_ids)
    return Sequence(
        seq_id=seq_id,
        request_id=request.request_id,
        token_ids=list(request.prompt_token_ids if token_ids is None else token_ids),
        num_prompt_tokens=len(request.prompt_token_ids),
        sampling_params=params,
        max_num_tokens=request.max_num_tokens if max_num_tokens is None else max_num_tokens,
        stop_token_ids=stop_token_ids,
        index=index,
        seed=request.seed if seed is None else seed,
        priority=request.priority,
        arrival_time=request.arrival_time,
        cache_salt=request.cache_salt,
        tenant=request.tenant,
        keep_blocks=keep_blocks,
    )


@functools.lru_cache
def _eos_set(token_ids: tuple[int, ...]) -> frozenset[int]:
    """The model's own, the same one for all sequences: each step looks into it for each of them."""
    return frozenset(token_ids)
