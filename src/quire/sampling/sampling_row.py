"""What the sampler keeps of one sequence from step to step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from quire.core.arrays import Float32Array
from quire.core.sampling_params import SamplingParams
from quire.sampling.constraints import AllowedTokens, BadWords, LogitBias, MinTokens
from quire.sampling.grammar import Grammar, Grammars
from quire.sampling.noise import uniform
from quire.sampling.penalties import Penalties, TokenCounts


class LogitsProcessor(Protocol):
    """One change of a row's logits before anything is chosen from them."""

    def apply(self, logits: Float32Array) -> None:
        """Change logits [V] in place."""


class SamplingRow:
    """One sequence as the sampler sees it.

    `token_ids` is the worker's live list, prompt and output: the row reads it at each step and never changes it.
    `stop_token_ids` are the ids min_tokens holds back. `grammars` makes the grammar of a row that wants one.
    """

    __slots__ = (
        "changes_logits",
        "grammar",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "params",
        "penalties",
        "processors",
        "seed",
        "takes_most_likely",
        "token_ids",
        "truncates",
    )

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        token_ids: list[int],
        num_prompt_tokens: int,
        stop_token_ids: Collection[int],
        grammars: Grammars | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        # The params' own, beside what each step looks at.
        self.num_prompt_logprobs = params.prompt_logprobs
        self.grammar = _grammar(params, token_ids, num_prompt_tokens, stop_token_ids, grammars)
        self.processors = _processors(params, token_ids, num_prompt_tokens, stop_token_ids, self.grammar)
        self.penalties = _penalties(params, token_ids, num_prompt_tokens)
        self.changes_logits = bool(self.processors) or self.penalties is not None
        self.takes_most_likely = params.greedy and not self.changes_logits and params.logprobs is None
        self.truncates = params.top_k > 0 or params.top_p < 1 or params.min_p > 0

    def prepare(self) -> None:
        """Start what can be done before the logits of the next token are there."""
        if self.grammar is not None:
            self.grammar.prepare()

    def uniform(self) -> float:
        """The random number of the next token, keyed by how many tokens are known before it."""
        return uniform(self.seed, len(self.token_ids))


def _grammar(
    params: SamplingParams,
    token_ids: list[int],
    num_prompt_tokens: int,
    stop_token_ids: Collection[int],
    grammars: Grammars | None,
) -> Grammar | None:
    wanted = params.structured_outputs
    if wanted is None:
        return None
    assert grammars is not None
    assert wanted.compiled_from is not None, "the input processor fills it"
    return grammars.follow(wanted.compiled_from, token_ids, num_prompt_tokens, params.min_tokens, stop_token_ids)


def _processors(
    params: SamplingParams,
    token_ids: list[int],
    num_prompt_tokens: int,
    stop_token_ids: Collection[int],
    grammar: Grammar | None,
) -> list[LogitsProcessor]:
    """Those the request asks for, in the order they apply. Penalties come after them."""
    processors: list[LogitsProcessor] = []
    if params.allowed_token_ids is not None:
        processors.append(AllowedTokens(params.allowed_token_ids))
    if params.bad_words_token_ids:
        processors.append(BadWords(params.bad_words_token_ids, token_ids, num_prompt_tokens))
    if grammar is not None:  # It minds min_tokens itself.
        processors.append(grammar)
    elif params.min_tokens > 0 and stop_token_ids:
        processors.append(MinTokens(params.min_tokens, stop_token_ids, token_ids, num_prompt_tokens))
    if params.logit_bias:
        processors.append(LogitBias(params.logit_bias))
    return processors


def _penalties(params: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> Penalties | None:
    if params.presence_penalty == 0 and params.frequency_penalty == 0 and params.repetition_penalty == 1:
        return None
    counts = TokenCounts(token_ids, num_prompt_tokens)
    return Penalties(counts, params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
