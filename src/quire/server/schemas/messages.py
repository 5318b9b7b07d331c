"""The bodies of /v1/messages and /v1/messages/count_tokens (Anthropic's), and the conversation in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from quire.errors import InvalidRequestError
from quire.server.chat_turn import Conversation
from quire.server.schemas.fields import (
    MAX_TOKENS,
    Id,
    Name,
    NumTokens,
    OfType,
    RequestBody,
    TextOrObject,
    text_or_list,
)
from quire.server.schemas.sampling import (
    MAX_STOP_STRINGS,
    GenerationFields,
    StopString,
    Structure,
    structure,
    unsupported,
)
from quire.server.tools.definitions import parse_tool_choice, parse_tools

MAX_MESSAGES = 4096
MAX_BLOCKS = 1024


class TextBlock(RequestBody):
    type: Literal["text"]
    text: str


TextBlocks = Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS)]
TextOrBlocks = Annotated[str | TextBlocks, text_or_list("a text or a list of text blocks")]


class ToolUseBlock(RequestBody):
    type: Literal["tool_use"]
    id: Id
    name: Id
    input: dict[str, Any]


class ToolResultBlock(RequestBody):
    type: Literal["tool_result"]
    tool_use_id: Id
    content: TextOrBlocks | None = None
    is_error: bool | None = None


class ThinkingBlock(RequestBody):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Not read: thinking is taken as it is.")


class RedactedThinkingBlock(RequestBody):
    """Another server's; it is left out."""

    type: Literal["redacted_thinking"]


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
Blocks = Annotated[list[Annotated[Block, OfType()]], Field(max_length=MAX_BLOCKS)]


class Message(RequestBody):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Blocks, text_or_list("a text or a list of blocks")]


class FunctionTool(RequestBody):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class MessagesToolChoice(RequestBody):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = Field(None, description="Of the tool, for the type tool.")
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestBody):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = Field(
        description="Reaches the model if its chat template reads enable_thinking."
    )
    budget_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(None, description="Has no effect.")


class JSONFormat(RequestBody):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestBody):
    format: JSONFormat | None = None
    effort: str | None = Field(None, description="Has no effect.")


class Metadata(RequestBody):
    user_id: Name | None = None


class CountTokensRequest(GenerationFields):
    """What makes the prompt; other fields of /v1/messages change nothing about it."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: TextOrBlocks | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JSONFormat | None = Field(None, description="The older name of output_config.format.")
    metadata: Metadata | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    container: TextOrObject | None = unsupported("no code is run here; leave it out")
    mcp_servers: list[dict[str, Any]] | None = unsupported(
        "no other servers are called from here; offer their tools in tools"
    )

    @property
    def tenant_user(self) -> str | None:
        """Anthropic's name for it, or the field of the other routes."""
        return self.user if self.metadata is None else self.metadata.user_id or self.user

    def conversation(self) -> Conversation:
        """Raises InvalidRequestError for what is not supported and for tools that break a rule."""
        self.check()
        tools = parse_tools([tool.model_dump(exclude_none=True) for tool in self.tools or ()])
        choice = self.tool_choice
        thinking = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        is_prefilled = self._is_prefilled()
        return Conversation(
            messages=self._as_messages(),
            tools=tools,
            choice=parse_tool_choice(None if choice is None else choice.model_dump(exclude_none=True), tools),
            parallel=not (choice and choice.disable_parallel_tool_use),
            chat_template_kwargs={**thinking, **(self.chat_template_kwargs or {})},
            add_generation_prompt=not is_prefilled,
            continue_final_message=is_prefilled,
        )

    def _is_prefilled(self) -> bool:
        """Whether the answer goes on with the last message."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        kinds = {"text"} if isinstance(last.content, str) else {block.type for block in last.content}
        if "text" not in kinds or "tool_use" in kinds:
            field = f"messages.{len(self.messages) - 1}"
            raise InvalidRequestError(
                f"{field} is the last message and the assistant's, so the answer goes on with it: it must have text and no"
                " tool_use; add the user's message, or the results of its tools.",
                field=field,
            )
        return True

    def _as_messages(self) -> list[dict[str, Any]]:
        """In the shape of chat completions."""
        messages = [] if self.system is None else [{"role": "system", "content": _text(self.system)}]
        for index, message in enumerate(self.messages):
            if isinstance(message.content, str):
                messages.append({"role": message.role, "content": message.content})
            elif message.role == "assistant":
                messages.append(_assistant_message(message.content, f"messages.{index}.content"))
            else:
                messages += _other_messages(message.role, message.content, f"messages.{index}.content")
        return messages

    def wanted_structure(self) -> Structure | None:
        """Raises InvalidRequestError."""
        wanted, field = self.output_format, "output_format.schema"
        if self.output_config is not None and self.output_config.format is not None:
            wanted, field = self.output_config.format, "output_config.format.schema"
        return None if wanted is None else structure(field, json=wanted.schema_)


class MessagesRequest(CountTokensRequest):
    max_tokens: NumTokens
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None


def _assistant_message(blocks: Sequence[Block], field: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock(id=call_id, name=name, input=arguments):
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            case ToolResultBlock():
                _refuse(block.type, "the user's", f"{field}.{index}")
    if texts:
        message["content"] = "\n".join(texts)
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _other_messages(role: str, blocks: Sequence[Block], field: str) -> list[dict[str, Any]]:
    """Results of tools become messages of their own, in the order of the blocks."""
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock(text=text):
                if messages and messages[-1]["role"] == role:
                    messages[-1]["content"] += f"\n{text}"
                else:
                    messages.append({"role": role, "content": text})
            case ToolResultBlock(tool_use_id=call_id, content=content, is_error=is_error):
                text = ("Error: " if is_error else "") + _text(content or "")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case _:
                _refuse(block.type, "the assistant's", f"{field}.{index}")
    return messages or [{"role": role, "content": ""}]


def _refuse(kind: str, whose: str, field: str) -> None:
    raise InvalidRequestError(f"{field} has the type {kind}, which only {whose} messages may hold.", field=field)


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
