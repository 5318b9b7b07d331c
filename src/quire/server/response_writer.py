"""Writes the answers of /v1/responses, whole or in events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from quire.core.outputs import CompletionOutput
from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ToolCallStart
from quire.server.block_writer import BlockKind, BlockWriter
from quire.server.chat_turn import ChatTurn
from quire.server.errors import describe
from quire.server.schemas.response_answers import (
    ArgumentsDelta,
    ArgumentsDone,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    LifecycleEvent,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    ReasoningText,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseAnswer,
    ResponseError,
    ResponseEvent,
    ResponseUsage,
    TextDelta,
    TextDone,
)
from quire.server.sse import event

ERROR_CODES = {429: "rate_limit_exceeded"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseWriter(BlockWriter):
    """Each block is an output item. `keep`, if given, gets the response once it is whole."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        turn: ChatTurn,
        response: ResponseAnswer,
        keep: Callable[[ResponseAnswer], None] | None,
    ) -> None:
        super().__init__(tokenizer, turn)
        self._response = response
        self._keep = keep
        self._num_events = 0

    def whole(self) -> ResponseAnswer:
        return self._response

    def begin(self) -> None:
        self._emit(LifecycleEvent(type="response.created", response=self._response))
        self._emit(LifecycleEvent(type="response.in_progress", response=self._response))

    def open_block(self, kind: BlockKind, call: ToolCallStart | None) -> None:
        item: OutputItem = OutputMessage(new_id("msg"), "in_progress", [])
        if call is not None:
            item = OutputFunctionCall(new_id("fc"), "in_progress", call.id, call.name, "")
        elif kind is BlockKind.REASONING:
            item = OutputReasoning(new_id("rs"), "in_progress", [])
        self._response.output.append(item)
        self._emit(ItemEvent(type="response.output_item.added", output_index=self._index, item=item))
        if kind is not BlockKind.CALL:
            part = ReasoningText("") if kind is BlockKind.REASONING else OutputText("")
            index = self._index
            self._emit(PartEvent(type="response.content_part.added", item_id=item.id, output_index=index, part=part))

    @property
    def _index(self) -> int:
        return len(self._response.output) - 1

    def extend_block(self, text: str) -> None:
        match self._response.output[-1]:
            case OutputFunctionCall(id=item_id):
                self._emit(ArgumentsDelta(item_id=item_id, output_index=self._index, delta=text))
            case OutputReasoning(id=item_id):
                self._emit(ReasoningTextDelta(item_id=item_id, output_index=self._index, delta=text))
            case OutputMessage(id=item_id):
                self._emit(TextDelta(item_id=item_id, output_index=self._index, delta=text))

    def close_block(self, text: str, *, is_complete: bool) -> None:
        item, index = self._response.output[-1], self._index
        match item:
            case OutputFunctionCall():
                item.arguments = text
                self._emit(ArgumentsDone(item_id=item.id, output_index=index, arguments=text))
            case OutputReasoning():
                item.content.append(ReasoningText(text))
                self._emit(ReasoningTextDone(item_id=item.id, output_index=index, text=text))
            case OutputMessage():
                item.content.append(OutputText(text))
                self._emit(TextDone(item_id=item.id, output_index=index, text=text))
        if not isinstance(item, OutputFunctionCall):
            part = item.content[0]
            self._emit(PartEvent(type="response.content_part.done", item_id=item.id, output_index=index, part=part))
        item.status = "completed" if is_complete else "incomplete"
        self._emit(ItemEvent(type="response.output_item.done", output_index=index, item=item))

    def finish(self, sample: CompletionOutput) -> None:
        response = self._response
        response.usage = self._usage()
        if sample.finish_reason == "length":
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails()
        else:
            response.status = "completed"
            response.completed_at = int(time.time())
        if self._keep is not None:
            self._keep(response)
        self._emit(LifecycleEvent(type=f"response.{response.status}", response=response))

    def report(self, error: Exception) -> None:
        status, body, _ = describe(error)
        self._response.status = "failed"
        self._response.error = ResponseError(ERROR_CODES.get(status, "server_error"), body.error.message)
        self._emit(LifecycleEvent(type="response.failed", response=self._response))

    def _usage(self) -> ResponseUsage:
        assert self.first is not None, "the answer has begun"
        num_prompt_tokens = len(self.first.prompt_token_ids)
        return ResponseUsage(
            num_prompt_tokens,
            InputTokensDetails(self.first.num_cached_tokens),
            self.num_tokens,
            OutputTokensDetails(self.num_reasoning_tokens),
            num_prompt_tokens + self.num_tokens,
        )

    def _emit(self, made: ResponseEvent) -> None:
        made.sequence_number = self._num_events
        self._num_events += 1
        self._events.append(event(made, made.type))
