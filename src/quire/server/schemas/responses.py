"""The body of /v1/responses, and the conversation that its items make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from quire.errors import InvalidRequestError
from quire.server.schemas.fields import (
    Id,
    NumTokens,
    OfType,
    ReasoningEffort,
    RequestBody,
    TextOrObject,
    at_most,
    text_or_list,
)
from quire.server.schemas.sampling import (
    GenerationFields,
    JSONObjectFormat,
    NamedSchema,
    Structure,
    TextFormat,
    structure,
    unsupported,
)

MAX_ITEMS = 4096
MAX_PARTS = 1024
MAX_METADATA = 16
INCLUDED_LOGPROBS = "message.output_text.logprobs"
NO_LOGPROBS = "logprobs are for /v1/chat/completions; leave it out"


class TextPart(RequestBody):
    type: Literal["input_text", "output_text"]
    text: str


class RefusalPart(RequestBody):
    type: Literal["refusal"]
    refusal: str


class ReasoningPart(RequestBody):
    type: Literal["reasoning_text", "summary_text"]
    text: str


PART_RULE = "a part of the type input_text, output_text or refusal; the model takes text only"
Part = Annotated[TextPart | RefusalPart, OfType(rule=PART_RULE)]
Parts = Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS)]
OutputParts = Annotated[list[TextPart], Field(max_length=MAX_PARTS)]
Content = Annotated[str | Parts, text_or_list("a text or a list of text parts")]
Output = Annotated[str | OutputParts, text_or_list("a text or a list of text parts")]


class MessageItem(RequestBody):
    type: Literal["message"] | None = None
    id: Id | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(RequestBody):
    type: Literal["function_call"]
    id: Id | None = None
    call_id: Id
    name: Id
    arguments: str


class FunctionCallOutputItem(RequestBody):
    type: Literal["function_call_output"]
    id: Id | None = None
    call_id: Id
    output: Output


class ReasoningItem(RequestBody):
    type: Literal["reasoning"]
    id: Id | None = None
    summary: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS)] | None = None
    content: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS)] | None = None


class ItemReference(RequestBody):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: Id


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
InputItem = Annotated[Item | ItemReference, OfType(default="message")]
Items = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_ITEMS)]
KEPT_ITEM: TypeAdapter[Any] = TypeAdapter(InputItem)
"""Reads an Item: no reference is ever kept."""


class FlatJSONSchemaFormat(NamedSchema):
    type: Literal["json_schema"]


Format = Annotated[TextFormat | JSONObjectFormat | FlatJSONSchemaFormat, OfType()]


class TextConfig(RequestBody):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Has no effect.")


class ReasoningConfig(RequestBody):
    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Has no effect: reasoning is answered as it is."
    )


class ResponsesRequest(GenerationFields):
    input: Annotated[str | Items, text_or_list("a text or a list of items")]
    instructions: str | None = Field(None, description="Go first; not kept for the responses that go on from this one.")
    max_output_tokens: NumTokens | None = Field(
        None, description="The rest of the context if null; more than fits is cut to what fits."
    )
    tools: list[dict[str, Any]] | None = Field(
        None, description="Of the type function. Others, which only OpenAI's own service runs, are left out."
    )
    tool_choice: TextOrObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    store: bool | None = Field(
        None, description="Keep the response for a while; true if null. Not with several API workers."
    )
    previous_response_id: Id | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=MAX_METADATA),
            at_most(MAX_METADATA),
        ]
        | None
    ) = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: leave out the oldest messages of a conversation that is too long; otherwise refuse it."
    )
    include: list[str] | None = Field(None, description="Has no effect; logprobs are not supported.")
    chat_template_kwargs: dict[str, Any] | None = None
    background: bool | None = unsupported(
        "a response is made while its client waits; leave it out and set stream to see it grow"
    )
    conversation: TextOrObject | None = unsupported(
        "nothing is kept beyond responses; go on from one with previous_response_id"
    )
    prompt: dict[str, Any] | None = unsupported("no prompts are kept here; send instructions and input")
    top_logprobs: int | None = unsupported(NO_LOGPROBS)

    def check(self) -> None:
        super().check()
        if INCLUDED_LOGPROBS in (self.include or ()):
            raise InvalidRequestError(f"include may not have {INCLUDED_LOGPROBS}: {NO_LOGPROBS}.", field="include")

    @property
    def items(self) -> list[InputItem]:
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        items: list[InputItem] = self.input
        return items

    def wanted_structure(self) -> Structure | None:
        """Raises InvalidRequestError."""
        match None if self.text is None else self.text.format:
            case JSONObjectFormat():
                return structure("text.format", json_object=True)
            case FlatJSONSchemaFormat(schema_=schema):
                return structure("text.format.schema", json=schema)
        return None


def as_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """In the shape of chat completions. What the model said in one turn becomes one message: reasoning, text, calls."""
    messages: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        match item:
            case MessageItem(role="assistant", content=content):
                _assistant_message(messages, unless="content")["content"] = _text(content)
            case MessageItem(role=role, content=content):
                messages.append({"role": role, "content": _text(content)})
            case ReasoningItem():
                parts = item.content or item.summary or []
                messages.append({"role": "assistant", "reasoning": "\n".join(part.text for part in parts)})
            case FunctionCallItem(call_id=call_id, name=name, arguments=arguments):
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                _assistant_message(messages).setdefault("tool_calls", []).append(call)
            case FunctionCallOutputItem(call_id=call_id, output=output):
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(output)})
    return messages


def _assistant_message(messages: list[dict[str, Any]], *, unless: str | None = None) -> dict[str, Any]:
    """The one that is being put together, or a new one; one that has calls takes no more text."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (unless is not None and (unless in last or "tool_calls" in last)):
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
