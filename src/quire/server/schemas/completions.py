"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quire.errors import InvalidRequestError
from quire.server.schemas.fields import MAX_TOKENS, ONE_OR_MORE_PROMPTS, TokenId, as_prompts
from quire.server.schemas.sampling import MAX_CHOICES, Logprobs, SamplingFields, unsupported

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
MAX_PROMPTS = 256
MAX_ECHOED_SAMPLES = 8
"""Of one prompt, whose logprobs come with each."""


TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
ListsOfTokenIds = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionRequest(SamplingFields):
    prompt: Annotated[str | Texts | TokenIds | ListsOfTokenIds, ONE_OR_MORE_PROMPTS]
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        None, description="16 if null; more than fits is cut to what fits. 0 only with echo: nothing is generated."
    )
    logprobs: Logprobs | None = None
    suffix: str | None = unsupported("the model only continues texts; leave it out")
    add_special_tokens: bool | None = Field(None, description="Begin texts as the model wants it (BOS); true if null.")

    @property
    def prompts(self) -> list[str | list[int]]:
        return as_prompts(self.prompt)

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequestError(
                "max_tokens is 0 and echo is not set, so there is nothing to answer; ask for at least one token.",
                field="max_tokens",
                value=0,
            )
        if self.echo and self.logprobs is not None and self.num_samples > MAX_ECHOED_SAMPLES:
            raise InvalidRequestError(
                f"echo with logprobs repeats the prompt's logprobs for each of n={self.num_samples} samples; at most"
                f" {MAX_ECHOED_SAMPLES} are taken so: ask for fewer, or leave out echo.",
                field="n",
                value=self.num_samples,
            )
        num_choices = len(self.prompts) * self.num_samples
        if num_choices > MAX_CHOICES:
            raise InvalidRequestError(
                f"{len(self.prompts)} prompts with n={self.num_samples} are {num_choices} samples; at most"
                f" {MAX_CHOICES} are taken: split them over several requests.",
                field="n",
                value=self.num_samples,
            )
