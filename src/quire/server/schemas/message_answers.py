"""The answers of /v1/messages: the message and its blocks. The events that tell of them are made in message_writer.py."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str = ""


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Thinking is not signed: this server takes it back as it is."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
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
