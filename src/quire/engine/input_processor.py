"""From what a caller passes to a validated, tokenized Request."""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.checkpoint.model_config import ModelConfig
from quire.core.request import Request
from quire.core.sampling_params import BeamSearchParams, SamplingParams
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with `prompt` (text) or `prompt_token_ids` (and, for the record, its `prompt`)."""


class InputProcessor:
    """Owns the rules a prompt must keep; every breach is an InvalidRequestError with the numbers and the remedy."""

    def __init__(self, tokenizer: Tokenizer, model: ModelConfig, max_model_len: int, seed: int | None) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._max_model_len = max_model_len
        self._seed = seed
        self._request_numbers = itertools.count()

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        beam_search: BeamSearchParams | None = None,
    ) -> Request:
        number = next(self._request_numbers)
        text, token_ids = self._tokenize(prompt)
        self._check_length(token_ids, params)
        params.check_vocabulary(self._model.vocab_size)
        return Request(
            request_id=request_id if request_id is not None else str(number),
            prompt=text,
            prompt_token_ids=token_ids,
            sampling_params=self._with_bad_words(params),
            beam_search=beam_search,
            eos_token_ids=list(self._tokenizer.eos_token_ids),
            max_num_tokens=self._max_num_tokens(token_ids, params, beam_search),
            seed=self._resolve_seed(params, number),
            priority=priority,
            arrival_time=time.monotonic(),
            cache_salt=cache_salt,
        )

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Text and token ids of any prompt form."""
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), self._check_token_ids(prompt["prompt_token_ids"])
            if isinstance(prompt.get("prompt"), str):
                return prompt["prompt"], self._tokenizer.encode(prompt["prompt"])
            raise InvalidRequestError(
                f"A prompt dict needs 'prompt' (text) or 'prompt_token_ids', got the keys {sorted(map(str, prompt))}.",
                field="prompt",
            )
        return None, self._check_token_ids(prompt)

    def _check_token_ids(self, token_ids: object) -> list[int]:
        if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes):
            raise InvalidRequestError(
                f"A prompt is a string, a list of token ids or a dict, got {type(token_ids).__name__}.", field="prompt"
            )
        for position, token_id in enumerate(token_ids):
            valid = isinstance(token_id, int) and not isinstance(token_id, bool)
            if not valid or not 0 <= token_id < self._model.vocab_size:
                raise InvalidRequestError(
                    f"Token id {token_id!r} at position {position} of the prompt is not a whole number from 0 to"
                    f" {self._model.vocab_size - 1}, the model's vocabulary.",
                    field="prompt_token_ids",
                    value=token_id,
                )
        return list(token_ids)

    def _check_length(self, token_ids: list[int], params: SamplingParams) -> None:
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("The prompt has no tokens; give at least one.", field="prompt")
        if num_tokens >= self._max_model_len:
            raise InvalidRequestError(
                f"The prompt has {num_tokens} tokens, but at most {self._max_model_len - 1} fit: the context is"
                f" {self._max_model_len} tokens and one must be left for the output; shorten the prompt"
                " or raise max_model_len.",
                field="prompt",
                value=num_tokens,
            )
        if params.min_tokens > self._max_model_len - num_tokens:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but after a prompt of {num_tokens} tokens only"
                f" {self._max_model_len - num_tokens} fit the context of {self._max_model_len}; lower min_tokens.",
                field="min_tokens",
                value=params.min_tokens,
            )

    def _max_num_tokens(
        self, token_ids: list[int], params: SamplingParams, beam_search: BeamSearchParams | None
    ) -> int:
        max_tokens = params.max_tokens if beam_search is None else beam_search.max_tokens
        if max_tokens is None:
            return self._max_model_len
        return min(len(token_ids) + max_tokens, self._max_model_len)

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        """A bad word is banned at the start of the text and after a space: two spellings in most vocabularies."""
        if not params.bad_words:
            return params
        spellings = []
        for word in params.bad_words:
            bare = word.lstrip()
            for form in (bare, " " + bare):
                ids = tuple(self._tokenizer.encode(form, add_special_tokens=False))
                if ids and ids not in spellings:
                    spellings.append(ids)
        return msgspec.structs.replace(params, bad_words_token_ids=tuple(spellings))

    def _resolve_seed(self, params: SamplingParams, number: int) -> int:
        """The request's own seed, or one derived from the engine's, or a fresh one."""
        if params.seed is not None:
            return params.seed % 2**64
        if self._seed is None:
            return secrets.randbits(64)
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        return int.from_bytes(digest[:8], "little")
