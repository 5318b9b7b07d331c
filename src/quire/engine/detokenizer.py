"""From the tokens of one sample to its text, as they come."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from quire.core.sampling_params import SamplingParams
from quire.engine.stop_strings import StopStringMatcher
from quire.engine.tokenizer import Tokenizer, utf8_decoder

MAX_TOKENS_OF_A_CHARACTER = 4
"""UTF-8 spends at most four bytes on a character, and a token carries at least one."""


class IncrementalDetokenizer:
    """Text of a growing list of tokens: never ahead of what is certain, each token decoded once.

    What is released concatenates to exactly the final text. Held back are the bytes of an unfinished character, and
    text that may be the start of a stop string. The text continues the prompt: the space before a word is kept, and
    a character the prompt left unfinished is completed.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], sampling_params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if sampling_params.skip_special_tokens else frozenset()
        self._min_tokens = sampling_params.min_tokens
        self._include_stop = sampling_params.include_stop_str_in_output
        self._stops = StopStringMatcher(sampling_params.stop)
        self._utf8 = utf8_decoder()
        for token_id in prompt_token_ids[-MAX_TOKENS_OF_A_CHARACTER:]:
            self._utf8.decode(self._bytes(token_id))
        self._strip_leading_space = tokenizer.strips_leading_space and all(
            token_id in self._skipped for token_id in prompt_token_ids
        )
        self._num_tokens = 0
        self._num_chars = 0
        self._text = io.StringIO()
        self._untaken: list[str] = []
        self._held = ""
        self._finished = False
        self.stop_reason: str | None = None

    @property
    def text(self) -> str:
        """All that is safe to release."""
        return self._text.getvalue()

    def append(self, token_ids: Iterable[int]) -> str | None:
        """Take in tokens. Returns the stop string that ends the text, if one does; later tokens are ignored.

        A stop string counts when the token that completes it comes after `min_tokens` others.
        """
        for token_id in token_ids:
            if self._finished:
                break
            self._num_tokens += 1
            piece = self._utf8.decode(self._bytes(token_id))
            if piece:
                self._take_in(piece)
        return self.stop_reason

    def take_delta(self) -> str:
        """What became safe to release since the last call."""
        delta = "".join(self._untaken)
        self._untaken.clear()
        return delta

    def finish(self) -> None:
        """No more tokens: release what was held back; an unfinished character becomes U+FFFD."""
        if self._finished:
            return
        piece = self._utf8.decode(b"", final=True)
        if piece:
            self._take_in(piece)
        if not self._finished:
            self._release(self._held)
            self._finished = True

    def _bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)

    def _take_in(self, piece: str) -> None:
        if self._strip_leading_space:
            self._strip_leading_space = False
            piece = piece.removeprefix(" ")
        self._num_chars += len(piece)
        self._held += piece
        match = self._stops.feed(piece)
        if match is None or self._num_tokens <= self._min_tokens:
            self._release(self._held[: len(self._held) - self._stops.num_held])
            return
        num_after = self._num_chars - match.end + (0 if self._include_stop else len(match.stop))
        self._release(self._held[: len(self._held) - num_after])
        self.stop_reason = match.stop
        self._finished = True

    def _release(self, text: str) -> None:
        if text:
            self._text.write(text)
            self._untaken.append(text)
            self._held = self._held[len(text) :]
