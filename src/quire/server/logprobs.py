"""Logprobs in the shapes of OpenAI's completions and chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.core.outputs import LogprobsAtPosition
from quire.engine.tokenizer import Tokenizer
from quire.server.schemas.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
)

LOWEST = -9999.0
"""What stands for -inf, which JSON cannot hold; OpenAI's."""


def chat_logprobs(tokenizer: Tokenizer, positions: Iterable[LogprobsAtPosition], num_top: int) -> ChatLogprobs:
    return ChatLogprobs([_content_logprob(tokenizer, position, num_top) for position in positions])


def _content_logprob(tokenizer: Tokenizer, position: LogprobsAtPosition, num_top: int) -> ContentLogprob:
    """The chosen token comes first in `position`; it is among the top ones only if it ranks there."""
    shaped = [
        (
            entry.rank,
            TokenLogprob(entry.decoded_token or "", max(entry.logprob, LOWEST), list(tokenizer.token_bytes(token_id))),
        )
        for token_id, entry in position.items()
    ]
    chosen = shaped[0][1]
    top = [(rank, token) for rank, token in shaped if rank is not None and rank <= num_top]
    top.sort(key=lambda ranked: ranked[0])
    return ContentLogprob(chosen.token, chosen.logprob, chosen.bytes, [token for _, token in top[:num_top]])


class CompletionLogprobsWriter:
    """Of one sample. Remembers where its text is, so that offsets go on from one delta to the next."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def write(self, token_ids: Sequence[int], positions: Sequence[LogprobsAtPosition | None]) -> CompletionLogprobs:
        """None: nothing is known of that token, as of a prompt's first."""
        written = CompletionLogprobs([], [], [], [])
        for token_id, position in zip(token_ids, positions, strict=True):
            token = self._tokenizer.decode_token(token_id)
            written.text_offset.append(self._offset)
            written.tokens.append(token)
            self._offset += len(token)
            if position is None:
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
                continue
            written.token_logprobs.append(max(position[token_id].logprob, LOWEST))
            # Several ids may have one text (parts of characters): the likelier one keeps its place.
            top: dict[str, float] = {}
            for entry in sorted(position.values(), key=lambda entry: -entry.logprob):
                top.setdefault(entry.decoded_token or "", max(entry.logprob, LOWEST))
            written.top_logprobs.append(top if self._num_top else {})
        return written


def prompt_logprobs(positions: Sequence[LogprobsAtPosition | None] | None) -> PromptLogprobs | None:
    """vLLM's shape: for each token of the prompt, ids in digits and what is known of them."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): PromptLogprob(max(entry.logprob, LOWEST), entry.rank, entry.decoded_token)
            for token_id, entry in position.items()
        }
        for position in positions
    ]
