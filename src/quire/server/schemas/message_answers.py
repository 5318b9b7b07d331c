"""The answers of /v1/messages: the message, its blocks, and the events that tell of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field


class Block(Struct, tag_field="type"):
    """One of those below."""


class TextBlock(Block, tag="text"):
    text: str = ""


class ThinkingBlock(Block, tag="thinking"):
    """Thinking is not signed: this server takes it back as it is."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = field(default_factory=dict)


class MessagesUsage(Struct):
    """Apart from each other: the prompt's tokens are those of `input_tokens` and those of the cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    """Anthropic charges for these; here the cache is filled without being asked."""


class MessageAnswer(Struct):
    id: str
    model: str
    usage: MessagesUsage
    content: list[TextBlock | ThinkingBlock | ToolUseBlock] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class MessagesErrorBody(Struct):
    type: str
    message: str


class MessagesError(Struct):
    error: MessagesErrorBody
    type: Literal["error"] = "error"


class TokenCount(Struct):
    input_tokens: int


class MessageEvent(Struct, kw_only=True, tag_field="type"):
    """The type is also the name of the server-sent event."""

    @property
    def event_name(self) -> str:
        return str(self.__struct_config__.tag)


class MessageStart(MessageEvent, tag="message_start"):
    message: MessageAnswer


class Ping(MessageEvent, tag="ping"):
    """Says nothing; clients expect to meet one."""


class BlockStart(MessageEvent, tag="content_block_start"):
    index: int
    content_block: Block


class BlockDeltaBody(Struct, tag_field="type"):
    """One of those below."""


class TextDelta(BlockDeltaBody, tag="text_delta"):
    text: str


class ThinkingDelta(BlockDeltaBody, tag="thinking_delta"):
    thinking: str


class SignatureDelta(BlockDeltaBody, tag="signature_delta"):
    signature: str = ""


class InputJSONDelta(BlockDeltaBody, tag="input_json_delta"):
    partial_json: str


class BlockDelta(MessageEvent, tag="content_block_delta"):
    index: int
    delta: BlockDeltaBody


class BlockStop(MessageEvent, tag="content_block_stop"):
    index: int


class StopDelta(Struct):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(MessageEvent, tag="message_delta"):
    delta: StopDelta
    usage: MessagesUsage


class MessageStop(MessageEvent, tag="message_stop"):
    """The last."""
