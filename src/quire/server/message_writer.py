"""Writes the answers of /v1/messages, whole or in events."""

from __future__ import annotations

import uuid
from typing import Any

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.answer_events import Event, ReasoningDelta, ToolCallStart
from quire.server.block_writer import BlockWriter
from quire.server.chat_turn import ChatTurn
from quire.server.errors import anthropic_error, describe
from quire.server.schemas.message_answers import MessageAnswer, MessagesUsage, TextBlock, ThinkingBlock, ToolUseBlock
from quire.server.sse import event
from quire.server.tools.prompt import read_arguments


class MessageWriter(BlockWriter):
    """`max_tokens`: the request's; an answer cut before that was cut by the end of the context."""

    def __init__(self, turn: ChatTurn, model: str, max_tokens: int) -> None:
        super().__init__(turn)
        self._max_tokens = max_tokens
        self.whole: MessageAnswer = MessageAnswer(f"msg_{uuid.uuid4().hex}", model, MessagesUsage(0, 0, 0))

    def begin(self, output: RequestOutput) -> None:
        num_cached = output.num_cached_tokens
        self.whole.usage = MessagesUsage(len(output.prompt_token_ids) - num_cached, num_cached, 0)
        self._emit("message_start", message=self.whole)
        # Says nothing; clients expect to meet one.
        self._emit("ping")

    def open_block(self, part: Event) -> None:
        block: TextBlock | ThinkingBlock | ToolUseBlock = TextBlock()
        if isinstance(part, ToolCallStart):
            block = ToolUseBlock(part.id, part.name)
        elif isinstance(part, ReasoningDelta):
            block = ThinkingBlock()
        self.whole.content.append(block)
        self._emit("content_block_start", index=self._index, content_block=block)

    @property
    def _index(self) -> int:
        return len(self.whole.content) - 1

    def extend_block(self, text: str) -> None:
        match self.whole.content[-1]:
            case TextBlock():
                self._emit_delta(type="text_delta", text=text)
            case ThinkingBlock():
                self._emit_delta(type="thinking_delta", thinking=text)
            case ToolUseBlock():
                self._emit_delta(type="input_json_delta", partial_json=text)

    def close_block(self, text: str, *, is_complete: bool) -> None:
        match self.whole.content[-1]:
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
                self._emit_delta(type="signature_delta", signature="")
            case ToolUseBlock() as block:
                block.input = read_arguments(text)
        self._emit("content_block_stop", index=self._index)

    def finish(self, output: RequestOutput) -> None:
        (sample,) = output.outputs
        message = self.whole
        message.usage.output_tokens = self.num_tokens
        message.stop_reason = self._stop_reason(sample)
        if message.stop_reason == "stop_sequence":
            message.stop_sequence = str(sample.stop_reason)
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        self._emit("message_delta", delta=delta, usage=message.usage)
        self._emit("message_stop")

    def _stop_reason(self, sample: CompletionOutput) -> str:
        if sample.finish_reason == "length":
            return "max_tokens" if self.num_tokens >= self._max_tokens else "model_context_window_exceeded"
        if isinstance(sample.stop_reason, str):
            return "stop_sequence"
        return "tool_use" if self._parser.num_tool_calls else "end_turn"

    def fail(self, error: Exception) -> bytes:
        status, body, _ = describe(error)
        return event(anthropic_error(status, body), "error")

    def _emit_delta(self, **delta: str) -> None:
        self._emit("content_block_delta", index=self._index, delta=delta)

    def _emit(self, kind: str, **fields: Any) -> None:
        """The type of an event is also its name."""
        self._events.append(event({"type": kind, **fields}, kind))
