"""How one request wants its tokens chosen. Every rule is checked on construction; a bad field raises InvalidRequestError."""

from __future__ import annotations

import enum

import msgspec

GREEDY_EPSILON = 1e-5
ALL_LOGPROBS = -1


class OutputKind(enum.Enum):
    """What each RequestOutput of a stream carries."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling choices of one request; names and defaults follow the field's convention (vLLM's)."""

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
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """`bad_words` as token ids; filled by the input processor, which owns the tokenizer."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_EPSILON


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """Beam search: `beam_width` hypotheses, ranked by cumulative logprob / length ** length_penalty."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
