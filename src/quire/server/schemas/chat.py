"""The body of /v1/chat/completions, and the conversation in it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from quire.errors import InvalidRequestError
from quire.server.chat_turn import Conversation
from quire.server.schemas.fields import (
    NumTokens,
    ReasoningEffort,
    RequestBody,
    TextOrObject,
    template_kwargs,
    text_or_list,
)
from quire.server.schemas.sampling import Logprobs, SamplingFields, unsupported
from quire.server.tools.definitions import parse_tool_choice, parse_tools

MAX_MESSAGES = 4096
MAX_PARTS = 1024

Parts = Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)]


class Message(RequestBody):
    """Templates may read more fields than these, so others are kept."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str | Parts, text_or_list("a text or a list of content parts")] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class TemplateFields(RequestBody):
    """How a conversation becomes a prompt; /tokenize takes the same."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: TextOrObject | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = Field(None, description="Only where the server trusts requests with it.")
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's message; true if null.")
    continue_final_message: bool | None = Field(
        None, description="Let the model go on with the last message; add_generation_prompt must be false then."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add BOS though the template writes special tokens itself; false if null."
    )

    def conversation(self, *, parallel: bool = True) -> Conversation:
        """Raises InvalidRequestError for tools that break a rule."""
        tools = parse_tools(self.tools)
        return Conversation(
            messages=[message.model_dump(exclude_unset=True) for message in self.messages],
            tools=tools,
            choice=parse_tool_choice(self.tool_choice, tools),
            parallel=parallel,
            documents=self.documents,
            chat_template=self.chat_template,
            chat_template_kwargs=template_kwargs(self.reasoning_effort, self.chat_template_kwargs),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=self.continue_final_message is True,
            add_special_tokens=self.add_special_tokens is True,
        )


class ChatCompletionRequest(TemplateFields, SamplingFields):
    max_tokens: NumTokens | None = Field(None, description="The older name of max_completion_tokens.")
    max_completion_tokens: NumTokens | None = Field(
        None, description="The rest of the context if null; more than fits is cut to what fits."
    )
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = Field(None, description="Only with logprobs.")
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = unsupported("it is the older name of tools; send tools")
    function_call: TextOrObject | None = unsupported("it is the older name of tool_choice; send tool_choice")
    modalities: list[str] | None = Field(None, description="Only text.")
    audio: dict[str, Any] | None = unsupported("the model answers in text only; leave it out")

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs is set, but logprobs is not; set logprobs to true.", field="top_logprobs"
            )
        if set(self.modalities or ()) - {"text"}:
            raise InvalidRequestError(
                f"modalities are {', '.join(self.modalities or ())[:100]}, but the model answers in text only; leave it out.",
                field="modalities",
            )
