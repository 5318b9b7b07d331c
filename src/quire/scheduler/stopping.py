"""When a sequence is done, as far as token ids tell (stop strings need text, and are found outside)."""

from __future__ import annotations

from quire.core.sequence import FinishReason, Sequence


def append_tokens(sequence: Sequence, token_ids: list[int]) -> tuple[int, FinishReason | None]:
    """Append sampled tokens up to the one that ends the sequence; returns how many, and why it ended, if it did.

    A stop id counts once min_tokens others are out. `stop_reason` becomes the id if the request asked for it,
    and stays None for EOS.
    """
    num_appended = 0
    for token_id in token_ids:
        sequence.token_ids.append(token_id)
        num_appended += 1
        if token_id in sequence.stop_token_ids and sequence.num_output_tokens > sequence.sampling_params.min_tokens:
            if token_id in sequence.sampling_params.stop_token_ids:
                sequence.stop_reason = token_id
            return num_appended, FinishReason.STOP
        if len(sequence.token_ids) >= sequence.max_num_tokens:
            return num_appended, FinishReason.LENGTH
    return num_appended, None
