"""From what a caller passes to a validated, tokenized Request."""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Any

import msgspec

from quire.checkpoint.model_config import ModelConfig
from quire.config import Task
from quire.core.embedding import WHOLE_CONTEXT, EmbeddingRequest, PoolingParams
from quire.core.request import Request
from quire.core.sampling_params import BeamSearchParams, SamplingParams
from quire.engine.grammar_check import GrammarCheck
from quire.engine.request_fields import check_kind, check_request_fields
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError, PromptTooLongError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with `prompt` (text) or `prompt_token_ids` (and, for the record, its `prompt`)."""
PROMPT_KEYS = ("prompt", "prompt_token_ids")


CHARACTERS_A_TOKEN = 16
"""Far more than text has: of one that is so long that it could fit hardly ever, so much is tokenized to see."""

WHAT_TASKS_DO: dict[Task, str] = {"generate": "generates text", "embed": "makes embeddings"}
WHERE_TO_ASK: dict[Task, str] = {
    "generate": "ask it for completions (LLM.generate, LLM.chat, /v1/completions, /v1/chat/completions)",
    "embed": "ask it for embeddings (LLM.embed, LLM.score, /v1/embeddings, /v1/score, /v1/rerank)",
}


class InputProcessor:
    """Owns the rules a prompt must keep; every breach is an InvalidRequestError with the numbers and the remedy."""

    def __init__(
        self, tokenizer: Tokenizer, model: ModelConfig, max_model_len: int, seed: int | None, id_prefix: str = ""
    ) -> None:
        """`id_prefix` keeps the ids of several processors apart, one in each process that feeds an engine."""
        self._tokenizer = tokenizer
        self._model = model
        self._max_model_len = max_model_len
        # In the words that clients look for.
        self._limit = f"This model's maximum context length is {max_model_len} tokens"
        self._seed = seed
        self._grammar_check = GrammarCheck(tokenizer, model.vocab_size)
        self.compiling = _one_thread()
        self._id_prefix = id_prefix
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        # One request's prompts have the same words.
        self._spellings = functools.lru_cache(maxsize=16)(self._find_spellings)

    def close(self) -> None:
        """End what was started to check requests; a later request starts it again."""
        self._grammar_check.close()
        waiting, self.compiling = self.compiling, _one_thread()
        waiting.shutdown(wait=False, cancel_futures=True)

    def must_compile(self, params: SamplingParams) -> bool:
        """Whether `process` takes as long as the compiler of structured outputs does. It compiles one at a time: who has to wait for
        it is to wait in `compiling`, not in threads that other requests need."""
        return params.structured_outputs is not None and not self._grammar_check.known(params.structured_outputs)

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        beam_search: BeamSearchParams | None = None,
    ) -> Request:
        self.check_task("generate")
        check_kind(params, SamplingParams, "sampling_params")
        check_request_fields(request_id=request_id, priority=priority, tenant=tenant, cache_salt=cache_salt)
        own_id = self._next_id()
        if isinstance(prompt, str):
            self.check_could_fit(prompt)
        text, token_ids = self._tokenize(prompt)
        self._check_length(token_ids, params)
        params.check_vocabulary(self._model.vocab_size)
        return Request(
            request_id=request_id if request_id is not None else own_id,
            prompt=text,
            prompt_token_ids=token_ids,
            sampling_params=self._with_grammar(self._with_bad_words(params)),
            beam_search=beam_search,
            eos_token_ids=list(self._tokenizer.eos_token_ids),
            max_num_tokens=self._max_num_tokens(token_ids, params, beam_search),
            seed=self._resolve_seed(params, own_id),
            priority=priority,
            arrival_time=time.monotonic(),
            cache_salt=cache_salt,
            tenant=tenant,
        )

    def process_embedding(
        self,
        prompt: Prompt,
        params: PoolingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> EmbeddingRequest:
        self.check_task("embed")
        check_kind(params, PoolingParams, "pooling_params")
        check_request_fields(request_id=request_id, priority=priority, tenant=tenant)
        if params.dimensions is not None and params.dimensions > self._model.hidden_size:
            raise InvalidRequestError(
                f"dimensions is {params.dimensions}, but the model's vectors have {self._model.hidden_size};"
                " lower it or leave it out.",
                field="dimensions",
                value=params.dimensions,
            )
        limit = params.truncate_prompt_tokens
        if isinstance(prompt, str) and limit is None:
            self._check_beginning(prompt)
        text, token_ids = self._tokenize(prompt)
        if limit is not None:
            token_ids = self._tokenizer.truncate(token_ids, self._max_model_len if limit == WHOLE_CONTEXT else limit)
        self._check_text_length(token_ids)
        return EmbeddingRequest(
            request_id=request_id if request_id is not None else self._next_id(),
            prompt=text,
            prompt_token_ids=token_ids,
            pooling_params=params,
            priority=priority,
            arrival_time=time.monotonic(),
            tenant=tenant,
        )

    def _next_id(self) -> str:
        """Requests are processed on several threads: `next` of a count is one step to them, of a generator it is not."""
        return f"{self._id_prefix}{next(self._numbers)}"

    def check_task(self, wanted: Task) -> None:
        """Raises InvalidRequestError if the model does something else."""
        task: Task = "embed" if self._model.is_encoder else "generate"
        if task != wanted:
            raise InvalidRequestError(
                f"The model ({self._model.architecture}) {WHAT_TASKS_DO[task]} and nothing else:"
                f" {WHERE_TO_ASK[task]}, or take a model that {WHAT_TASKS_DO[wanted]}.",
                field="model",
            )

    def _check_text_length(self, token_ids: list[int]) -> None:
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("The text has no tokens; give at least one.", field="prompt")
        if num_tokens > self._max_model_len:
            raise PromptTooLongError(
                f"{self._limit}, and the text has {num_tokens}; shorten it, or set truncate_prompt_tokens to -1 to have it"
                " cut there.",
                field="prompt",
                value=num_tokens,
            )

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Text and token ids of any prompt form."""
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        if isinstance(prompt, Mapping):
            text = _checked_text(prompt)
            if "prompt_token_ids" in prompt:
                token_ids = prompt["prompt_token_ids"]
                if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes):
                    raise InvalidRequestError(
                        f"'prompt_token_ids' in a prompt dict is a list of token ids, got {type(token_ids).__name__}.",
                        field="prompt",
                    )
                return text, self.check_token_ids(token_ids)
            if text is not None:
                return text, self._tokenizer.encode(text)
            raise InvalidRequestError(
                f"A prompt dict needs 'prompt' (text) or 'prompt_token_ids', got the keys {sorted(map(str, prompt))}.",
                field="prompt",
            )
        return None, self.check_token_ids(prompt)

    def check_could_fit(self, text: str) -> None:
        """Raises InvalidRequestError for a text so long that, however it is cut into tokens, they are too many.

        Tokenizing megabytes takes seconds; this takes none, or that of the text's beginning.
        """
        longest = self._tokenizer.max_token_bytes if len(text) > self._max_model_len else None
        if longest is not None and len(text) > longest * self._max_model_len:
            raise PromptTooLongError(
                f"{self._limit} of at most {longest} bytes, and the prompt is too long: it has {len(text)} characters, but"
                f" at most {longest * self._max_model_len} could fit; shorten it or raise max_model_len.",
                field="prompt",
                value=len(text),
            )
        self._check_beginning(text)

    def _check_beginning(self, text: str) -> None:
        """Raises InvalidRequestError for a text whose beginning alone has twice the tokens that fit: for megabytes of text that is soon
        said, where tokenizing all of it takes seconds, gigabytes, and other requests' turn."""
        num_characters = CHARACTERS_A_TOKEN * self._max_model_len
        if len(text) <= 2 * num_characters:
            return
        num_tokens = len(self._tokenizer.encode(text[:num_characters]))
        if num_tokens > 2 * self._max_model_len:
            raise PromptTooLongError(
                f"{self._limit}, and the prompt is too long: the first {num_characters} of its {len(text)} characters alone"
                f" are {num_tokens} tokens; shorten it or raise max_model_len.",
                field="prompt",
                value=len(text),
            )

    def check_token_ids(self, token_ids: object, field: str = "prompt") -> list[int]:
        """A list of ids of the model's vocabulary. Raises InvalidRequestError for anything else."""
        if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes):
            raise InvalidRequestError(
                f"A prompt is a string, a list of token ids or a dict, got {type(token_ids).__name__}.", field=field
            )
        ids, vocab_size = list(token_ids), self._model.vocab_size
        # All at once first: one by one, those of a long prompt take half a millisecond.
        if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) < vocab_size:
            return ids
        for position, token_id in enumerate(ids):
            valid = isinstance(token_id, Integral) and not isinstance(token_id, bool)
            if not valid or not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"Token id {token_id!r} at position {position} of {field} is not a whole number from 0 to"
                    f" {vocab_size - 1}, the model's vocabulary.",
                    field=field,
                    value=token_id,
                )
        return [int(token_id) for token_id in ids]

    def _check_length(self, token_ids: list[int], params: SamplingParams) -> None:
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("The prompt has no tokens; give at least one.", field="prompt")
        if num_tokens >= self._max_model_len:
            raise PromptTooLongError(
                f"{self._limit}, of which one must be left for the output, and the prompt is too long: it has {num_tokens}"
                f" tokens, but at most {self._max_model_len - 1} fit; shorten it or raise max_model_len.",
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
        with self._lock:
            spellings = self._spellings(params.bad_words)
        banned = tuple(dict.fromkeys(params.bad_words_token_ids + spellings))
        return msgspec.structs.replace(params, bad_words_token_ids=banned)

    def _find_spellings(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        forms = [form for word in words for form in (word.lstrip(), " " + word.lstrip())]
        return tuple(dict.fromkeys(tuple(ids) for ids in self._tokenizer.encode_plain(forms) if ids))

    def _with_grammar(self, params: SamplingParams) -> SamplingParams:
        """Structured output as the worker compiles it, after it was tried where it can do no harm."""
        if params.structured_outputs is None:
            return params
        wanted = self._grammar_check.resolve(params.structured_outputs)
        return msgspec.structs.replace(params, structured_outputs=wanted)

    def _resolve_seed(self, params: SamplingParams, own_id: str) -> int:
        """The request's own seed, or one derived from the engine's, or a fresh one."""
        if params.seed is not None:
            return params.seed % 2**64
        if self._seed is None:
            return secrets.randbits(64)
        digest = hashlib.sha256(f"{self._seed}/{own_id}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


def _checked_text(prompt: Mapping[str, Any]) -> str | None:
    """The text of a prompt dict. Raises InvalidRequestError for a key that would be left out: the answer would be to another question,
    or its cache shared against the caller's will."""
    unknown = sorted(str(key) for key in prompt if key not in PROMPT_KEYS and prompt[key] is not None)
    if unknown:
        raise InvalidRequestError(
            f"A prompt dict has {' and '.join(PROMPT_KEYS)}, not {', '.join(unknown)}; leave that out, and give what is no"
            " part of the prompt as an argument beside it.",
            field="prompt",
            value=unknown,
        )
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"'prompt' in a prompt dict is text, got {type(text).__name__}.", field="prompt")
    return text


def _one_thread() -> ThreadPoolExecutor:
    """Which starts with the first work for it."""
    return ThreadPoolExecutor(1, "quire-grammars")
