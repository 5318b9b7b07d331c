"""Logprobs in the shapes of OpenAI's completions and chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.core.outputs import LogprobsAtPosition
from quire.engine.detokenizer import MAX_TOKENS_OF_A_CHARACTER
from quire.engine.tokenizer import Tokenizer, utf8_decoder
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


class _Place:
    """Goes through a text by its tokens, and says where each begins."""

    def __init__(self, *, strips_leading_space: bool) -> None:
        self._strips_leading_space = strips_leading_space
        self._utf8 = utf8_decoder()
        self.offset = 0
        """Characters so far, without the one that is unfinished."""

    def begin_of(self, data: bytes) -> int:
        """Characters before the first of a next token's, or before the one of which it has the rest."""
        unfinished, _ = self._utf8.getstate()
        return self.offset + max(0, len((unfinished + data[:1]).decode(errors="replace")) - 1)

    def pass_by(self, data: bytes) -> int:
        """The next token's bytes. Returns `begin_of` them."""
        if self._strips_leading_space and data:
            self._strips_leading_space = False
            data = data.removeprefix(b" ")
        begin = self.begin_of(data)
        self.offset += len(self._utf8.decode(data))
        return begin


class CompletionLogprobsWriter:
    """Of one sample. Remembers where its text is, so that offsets go on from one delta to the next.

    Offsets are of the text that is shown: special tokens that are skipped take no room in it, and all parts of a
    character begin where it does.
    """

    def __init__(
        self, tokenizer: Tokenizer, num_top: int, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._prompt_token_ids = prompt_token_ids
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        only_skipped = self._skipped.issuperset(prompt_token_ids)
        self._place = _Place(strips_leading_space=tokenizer.strips_leading_space and only_skipped)
        for token_id in prompt_token_ids[-MAX_TOKENS_OF_A_CHARACTER:]:
            self._place.pass_by(self._shown_bytes(token_id))
        self._place.offset = 0
        self._written = CompletionLogprobs([], [], [], [])

    def echo(self, positions: Sequence[LogprobsAtPosition | None], shown: str) -> None:
        """The prompt's, to be written first; it is `shown` before the text. None: nothing is known of that token."""
        place = _Place(strips_leading_space=self._tokenizer.strips_leading_space)
        for token_id, position in zip(self._prompt_token_ids, positions, strict=True):
            data = self._tokenizer.token_bytes(token_id)
            # A prompt that was sent as text has the special tokens that it spells, not those that were put around it.
            begin = place.begin_of(data)
            is_special = token_id in self._tokenizer.special_token_ids
            if is_special and not shown.startswith(self._tokenizer.decode_token(token_id), begin):
                data = b""
            elif not shown.startswith(" ", begin):
                data = data.removeprefix(b" ")  # the tokenizer's own, before a word
            self._append(token_id, position, min(place.pass_by(data), len(shown)))
        self._place.offset = len(shown)

    def write(self, token_ids: Sequence[int], positions: Sequence[LogprobsAtPosition | None]) -> CompletionLogprobs:
        """The sample's next tokens."""
        for token_id, position in zip(token_ids, positions, strict=True):
            self._append(token_id, position, self._place.pass_by(self._shown_bytes(token_id)))
        written, self._written = self._written, CompletionLogprobs([], [], [], [])
        return written

    def _shown_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)

    def _append(self, token_id: int, position: LogprobsAtPosition | None, offset: int) -> None:
        written = self._written
        written.text_offset.append(offset)
        written.tokens.append(self._tokenizer.decode_token(token_id))
        if position is None:
            written.token_logprobs.append(None)
            written.top_logprobs.append(None)
            return
        written.token_logprobs.append(max(position[token_id].logprob, LOWEST))
        # Several ids may have one text (parts of characters): the likelier one keeps its place.
        top: dict[str, float] = {}
        for entry in sorted(_reported(position, self._num_top).values(), key=lambda entry: -entry.logprob):
            top.setdefault(entry.decoded_token or "", max(entry.logprob, LOWEST))
        written.top_logprobs.append(top if self._num_top else {})


def _reported(position: LogprobsAtPosition, num_top: int) -> LogprobsAtPosition:
    """The token itself, which comes first, and the `num_top` most likely: the engine may have been asked for more."""
    return {
        token_id: entry
        for number, (token_id, entry) in enumerate(position.items())
        if number == 0 or (entry.rank is not None and entry.rank <= num_top)
    }


def prompt_logprobs(positions: Sequence[LogprobsAtPosition | None] | None, num_top: int) -> PromptLogprobs | None:
    """vLLM's shape: for each token of the prompt, ids in digits and what is known of them."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): PromptLogprob(max(entry.logprob, LOWEST), entry.rank, entry.decoded_token)
            for token_id, entry in _reported(position, num_top).items()
        }
        for position in positions
    ]
