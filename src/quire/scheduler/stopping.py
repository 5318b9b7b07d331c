"""When a sequence is done, as far as token ids tell (stop strings need text, and are found outside)."""

from __future__ import annotations

from typing import NamedTuple

from quire.core.sequence import FinishReason, Sequence


class Stop(NamedTuple):
    reason: FinishReason
    stop_reason: int | str | None


OUT_OF_LENGTH = Stop(FinishReason.LENGTH, None)


def append_token(sequence: Sequence, token_id: int) -> Stop | None:
    """Append a sampled token; says if and why the sequence ends with it.

    A stop id counts once min_tokens others are out, or where structured output allows nothing else. `stop_reason` is
    the id if the request asked for it, None for EOS.
    """
    sequence.token_ids.append(token_id)
    if token_id in sequence.stop_token_ids:
        params = sequence.sampling_params
        if sequence.num_output_tokens > params.min_tokens or params.structured_outputs is not None:
            asked_for = token_id in params.stop_token_ids
            return Stop(FinishReason.STOP, token_id if asked_for else None)
    if len(sequence.token_ids) >= sequence.max_num_tokens:
        return OUT_OF_LENGTH
    return None
