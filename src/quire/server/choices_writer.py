"""What the APIs whose answers are choices (completions, chat completions) share: their frame, and counts of tokens."""

from __future__ import annotations

import time
import uuid

import msgspec

from quire import __version__
from quire.core.outputs import RequestOutput
from quire.server.answering import AnswerWriter
from quire.server.schemas.answers import ChatChunk, Completion, PromptTokensDetails, Usage
from quire.server.schemas.sampling import SamplingFields
from quire.server.sse import DONE, event
from quire.server.state import ServerState

FINGERPRINT = f"quire-{__version__}"


def new_frame(state: ServerState, kind: str) -> tuple[str, int, str, str]:
    """id, created, model and system_fingerprint of an answer."""
    return f"{kind}-{uuid.uuid4().hex}", int(time.time()), state.model_name, FINGERPRINT


class ChoicesWriter(AnswerWriter):
    """Of all samples of all prompts of one request."""

    _chunk: Completion | ChatChunk
    """What events are made of. Its choices are replaced each time, its counts where they are wanted so often."""

    def __init__(self, state: ServerState, body: SamplingFields, chunk: Completion | ChatChunk) -> None:
        self._tokenizer = state.llm.tokenizer
        options = body.stream_options
        self._counts_always = bool(options and options.continuous_usage_stats)
        self._counts_at_end = bool(options and options.include_usage)
        self._num_tokens = 0
        self._outputs: dict[int, RequestOutput] = {}
        """The newest of each prompt."""
        self._chunk = chunk
        if self._counts_at_end:
            chunk.usage = None

    def end(self) -> bytes:
        if not self._counts_at_end:
            return DONE
        return event(msgspec.structs.replace(self._chunk, choices=[], usage=self._usage())) + DONE

    def _usage(self) -> Usage:
        """So far."""
        outputs = self._outputs.values()
        num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            total_tokens=num_prompt_tokens + self._num_tokens,
            completion_tokens=self._num_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(output.num_cached_tokens for output in outputs)),
        )
