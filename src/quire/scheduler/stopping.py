"""When a sequence is done, as far as token ids tell (stop strings need text, and are found outside)."""

from __future__ import annotations

from quire.core.sequence import FinishReason, Sequence


def append_token(sequence: Sequence, token_id: int) -> tuple[FinishReason, int | None] | None:
    """Append a sampled token; if the sequence ends with it, its `finish_reason` and `stop_reason`.

    A stop id counts once min_tokens others are out, or where structured output allows nothing else. `stop_reason` is
    the id if the request asked for it, None for EOS.
    """
    sequence.token_ids.append(token_id)
    if token_id in sequence.stop_token_ids:
        params = sequence.sampling_params
        if sequence.num_output_tokens > params.min_tokens or params.structured_outputs is not None:
            return FinishReason.STOP, token_id if token_id in params.stop_token_ids else None
    if len(sequence.token_ids) >= sequence.max_num_tokens:
        return FinishReason.LENGTH, None
    return None
