"""How one request wants its tokens chosen. Every rule is checked on construction; a bad field raises InvalidRequestError."""

from __future__ import annotations

import enum
import math

import msgspec

from quire.core.sampling_rules import (
    Rule,
    apply_rules,
    logit_bias,
    one_of,
    optional,
    real_number,
    refuse,
    some_token_ids,
    strings,
    token_id_lists,
    token_ids,
    true_or_false,
    whole_number,
)
from quire.core.structured_outputs import StructuredOutputs, structured_outputs
from quire.errors import InvalidRequestError

GREEDY_EPSILON = 1e-5
ALL_LOGPROBS = -1
MAX_SAMPLES = 16384


class OutputKind(enum.Enum):
    """What each RequestOutput of a stream carries."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling choices of one request; names and defaults follow the field's convention (vLLM's).

    Sequences may be given as lists, `stop` as one string, `seed=-1` for None, `top_k=-1` for 0 (off), and the keys of
    `logit_bias` as digits; they are stored in the types below. A temperature under 1e-5 is greedy, which turns
    top_p, top_k and min_p off. Raises InvalidRequestError.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    """Most likely tokens to report with each sampled one; ALL_LOGPROBS for the whole vocabulary."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Taken and without effect: text is as the tokens have it."""
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """The same as token ids; the input processor, which owns the tokenizer, adds the spellings of `bad_words`."""
    structured_outputs: StructuredOutputs | None = None
    """The form the text must have. It ends where the form is complete, whatever ignore_eos and min_tokens say."""

    def __post_init__(self) -> None:
        apply_rules(self, _SAMPLING_RULES)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            refuse(
                "min_tokens",
                self.min_tokens,
                f"it must be at most max_tokens, which is {self.max_tokens}",
                "lower min_tokens or raise max_tokens",
            )
        if self.stop and not self.detokenize:
            refuse("stop", self.stop, "stop strings are found in text and detokenize is False", "set detokenize=True")
        if self.greedy:
            if self.n > 1:
                refuse(
                    "n", self.n, "samples at temperature 0 are all the same", "use n=1 or a temperature of 1e-5 or more"
                )
            for field, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                msgspec.structs.force_setattr(self, field, off)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_EPSILON

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequestError if a token id is not below `vocab_size`."""
        named: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("logit_bias", tuple(self.logit_bias or ())),
            ("bad_words_token_ids", tuple(token_id for ids in self.bad_words_token_ids for token_id in ids)),
        )
        for field, ids in named:
            largest = max(ids, default=0)
            if largest >= vocab_size:
                raise InvalidRequestError(
                    f"{field} has token id {largest}, but the model's vocabulary is the ids 0 to {vocab_size - 1};"
                    " remove the id.",
                    field=field,
                    value=largest,
                )


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """Beam search: `beam_width` hypotheses, ranked by cumulative logprob / length ** length_penalty. `temperature` is 0.

    Raises InvalidRequestError.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        apply_rules(self, _BEAM_SEARCH_RULES)


_PENALTY = real_number(-2, 2, remedy="use 0 to turn it off")
_LOGPROBS = whole_number(0, remedy="use -1 for the whole vocabulary, None for no logprobs", aliases={-1: ALL_LOGPROBS})

_SAMPLING_RULES: dict[str, Rule] = {
    "n": whole_number(1, MAX_SAMPLES, remedy="split more samples over several requests"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": real_number(0, math.inf, above_low=True, remedy="use 1 to turn it off"),
    "temperature": real_number(0, 2, remedy="use 0 for greedy, 1 for the model's own distribution"),
    "top_p": real_number(0, 1, above_low=True, remedy="use 1 to turn it off"),
    "top_k": whole_number(0, remedy="use 0 or -1 to turn it off", aliases={-1: 0}),
    "min_p": real_number(0, 1, remedy="use 0 to turn it off"),
    "seed": optional(
        whole_number(-(2**63), 2**64 - 1, remedy="use 64 bits at most, or None for a random seed", aliases={-1: None})
    ),
    "stop": strings("pass a string or a list of strings"),
    "stop_token_ids": token_ids,
    "ignore_eos": true_or_false,
    "max_tokens": optional(whole_number(1, remedy="ask for at least one token, or use None to fill the context")),
    "min_tokens": whole_number(0, remedy="use 0 to let the model stop at once"),
    "logprobs": optional(_LOGPROBS),
    "prompt_logprobs": optional(_LOGPROBS),
    "detokenize": true_or_false,
    "skip_special_tokens": true_or_false,
    "spaces_between_special_tokens": true_or_false,
    "include_stop_str_in_output": true_or_false,
    "output_kind": one_of(*OutputKind),
    "logit_bias": logit_bias,
    "allowed_token_ids": some_token_ids,
    "bad_words": strings("pass a list of words"),
    "bad_words_token_ids": token_id_lists,
    "structured_outputs": structured_outputs,
}

_BEAM_SEARCH_RULES: dict[str, Rule] = {
    "beam_width": whole_number(1, MAX_SAMPLES, remedy="search with fewer beams"),
    "max_tokens": whole_number(1, remedy="ask for at least one token"),
    "ignore_eos": true_or_false,
    "temperature": real_number(0, 0, remedy="beams are ranked by the model's own logprobs: leave it out"),
    "length_penalty": real_number(-10, 10, remedy="use 1 to rank by the mean logprob of a token"),
}
