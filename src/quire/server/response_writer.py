"""Writes the answers of /v1/responses, whole or in events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from quire.core.outputs import RequestOutput
from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import Event, ReasoningDelta, ToolCallStart
from quire.server.block_writer import BlockWriter
from quire.server.chat_turn import ChatTurn
from quire.server.errors import describe
from quire.server.schemas.response_answers import (
    IncompleteDetails,
    InputTokensDetails,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseAnswer,
    ResponseError,
    ResponseUsage,
)
from quire.server.sse import event


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseWriter(BlockWriter):
    """Each block is an output item; messages and reasoning have one part. `keep`, if given, gets the response once it is
    whole."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        turn: ChatTurn,
        response: ResponseAnswer,
        keep: Callable[[ResponseAnswer], None] | None,
    ) -> None:
        super().__init__(turn)
        self._tokenizer = tokenizer
        self.whole: ResponseAnswer = response
        self._keep = keep
        self._num_events = 0

    def begin(self, output: RequestOutput) -> None:
        self._emit("response.created", response=self.whole)
        self._emit("response.in_progress", response=self.whole)

    def open_block(self, part: Event) -> None:
        item: OutputItem = OutputMessage(new_id("msg"), "in_progress", [])
        if isinstance(part, ToolCallStart):
            item = OutputFunctionCall(new_id("fc"), "in_progress", part.id, part.name, "")
        elif isinstance(part, ReasoningDelta):
            item = OutputReasoning(new_id("rs"), "in_progress", [])
        self.whole.output.append(item)
        self._emit("response.output_item.added", output_index=self._index, item=item)
        if not isinstance(item, OutputFunctionCall):
            empty = ReasoningText("") if isinstance(item, OutputReasoning) else OutputText("")
            self._emit_of_item("response.content_part.added", content_index=0, part=empty)

    @property
    def _index(self) -> int:
        return len(self.whole.output) - 1

    def extend_block(self, text: str) -> None:
        match self.whole.output[-1]:
            case OutputFunctionCall():
                self._emit_of_item("response.function_call_arguments.delta", delta=text)
            case OutputReasoning():
                self._emit_of_item("response.reasoning_text.delta", content_index=0, delta=text)
            case OutputMessage():
                self._emit_of_item("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def close_block(self, text: str, *, is_complete: bool) -> None:
        item = self.whole.output[-1]
        match item:
            case OutputFunctionCall():
                item.arguments = text
                self._emit_of_item("response.function_call_arguments.done", arguments=text)
            case OutputReasoning():
                item.content.append(ReasoningText(text))
                self._emit_of_item("response.reasoning_text.done", content_index=0, text=text)
            case OutputMessage():
                item.content.append(OutputText(text))
                self._emit_of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
        if not isinstance(item, OutputFunctionCall):
            self._emit_of_item("response.content_part.done", content_index=0, part=item.content[0])
        item.status = "completed" if is_complete else "incomplete"
        self._emit("response.output_item.done", output_index=self._index, item=item)

    def finish(self, output: RequestOutput) -> None:
        (sample,) = output.outputs
        response = self.whole
        response.usage = self._usage(output)
        if sample.finish_reason == "length":
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails()
        else:
            response.status = "completed"
            response.completed_at = int(time.time())
        if self._keep is not None:
            self._keep(response)
        self._emit(f"response.{response.status}", response=response)

    def fail(self, error: Exception) -> bytes:
        self.whole.status = "failed"
        self.whole.error = ResponseError("server_error", describe(error)[1].error.message)
        self._emit("response.failed", response=self.whole)
        return self._take_events()

    def _usage(self, output: RequestOutput) -> ResponseUsage:
        num_prompt_tokens = len(output.prompt_token_ids)
        # Counted from the text: which tokens made it is not known.
        thoughts = [item.content[0].text for item in self.whole.output if isinstance(item, OutputReasoning)]
        num_reasoning_tokens = len(self._tokenizer.encode("".join(thoughts), add_special_tokens=False))
        return ResponseUsage(
            num_prompt_tokens,
            InputTokensDetails(output.num_cached_tokens),
            self.num_tokens,
            OutputTokensDetails(num_reasoning_tokens),
            num_prompt_tokens + self.num_tokens,
        )

    def _emit_of_item(self, kind: str, **fields: Any) -> None:
        """An event of the open item."""
        self._emit(kind, item_id=self.whole.output[-1].id, output_index=self._index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        """Events are numbered from 0; the type of one is also its name."""
        self._events.append(event({"type": kind, "sequence_number": self._num_events, **fields}, kind))
        self._num_events += 1
