"""Writes the answers of /v1/messages, whole or in events."""

from __future__ import annotations

import uuid

from quire.core.outputs import CompletionOutput
from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ToolCallStart
from quire.server.block_writer import BlockKind, BlockWriter
from quire.server.chat_turn import ChatTurn
from quire.server.errors import anthropic_error, describe
from quire.server.schemas.message_answers import (
    BlockDelta,
    BlockDeltaBody,
    BlockStart,
    BlockStop,
    InputJSONDelta,
    MessageAnswer,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    SignatureDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from quire.server.sse import event
from quire.server.tools.prompt import read_arguments


class MessageWriter(BlockWriter):
    """`max_tokens`: the request's; an answer cut before that was cut by the end of the context."""

    def __init__(self, tokenizer: Tokenizer, turn: ChatTurn, model: str, max_tokens: int) -> None:
        super().__init__(tokenizer, turn)
        self._max_tokens = max_tokens
        self._message = MessageAnswer(f"msg_{uuid.uuid4().hex}", model, MessagesUsage(0, 0, 0))

    def whole(self) -> MessageAnswer:
        return self._message

    def begin(self) -> None:
        assert self.first is not None, "the first output has come"
        num_cached = self.first.num_cached_tokens
        self._message.usage = MessagesUsage(len(self.first.prompt_token_ids) - num_cached, num_cached, 0)
        self._emit(MessageStart(message=self._message))
        self._emit(Ping())

    def open_block(self, kind: BlockKind, call: ToolCallStart | None) -> None:
        block: TextBlock | ThinkingBlock | ToolUseBlock = TextBlock()
        if call is not None:
            block = ToolUseBlock(call.id, call.name)
        elif kind is BlockKind.REASONING:
            block = ThinkingBlock()
        self._message.content.append(block)
        self._emit(BlockStart(index=self._index, content_block=block))

    @property
    def _index(self) -> int:
        return len(self._message.content) - 1

    def extend_block(self, text: str) -> None:
        match self._message.content[-1]:
            case TextBlock():
                self._emit_delta(TextDelta(text))
            case ThinkingBlock():
                self._emit_delta(ThinkingDelta(text))
            case ToolUseBlock():
                self._emit_delta(InputJSONDelta(text))

    def close_block(self, text: str, *, is_complete: bool) -> None:
        match self._message.content[-1]:
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
                self._emit_delta(SignatureDelta())
            case ToolUseBlock() as block:
                block.input = read_arguments(text)
        self._emit(BlockStop(index=self._index))

    def finish(self, sample: CompletionOutput) -> None:
        message = self._message
        message.usage.output_tokens = self.num_tokens
        message.stop_reason = self._stop_reason(sample)
        if message.stop_reason == "stop_sequence":
            message.stop_sequence = str(sample.stop_reason)
        delta = StopDelta(message.stop_reason, message.stop_sequence)
        self._emit(MessageDelta(delta=delta, usage=message.usage))
        self._emit(MessageStop())

    def _stop_reason(self, sample: CompletionOutput) -> str:
        if sample.finish_reason == "length":
            return "max_tokens" if self.num_tokens >= self._max_tokens else "model_context_window_exceeded"
        if isinstance(sample.stop_reason, str):
            return "stop_sequence"
        return "tool_use" if self.num_calls else "end_turn"

    def report(self, error: Exception) -> None:
        status, body, _ = describe(error)
        self._events.append(event(anthropic_error(status, body), "error"))

    def _emit_delta(self, delta: BlockDeltaBody) -> None:
        self._emit(BlockDelta(index=self._index, delta=delta))

    def _emit(self, made: MessageEvent) -> None:
        self._events.append(event(made, made.event_name))
