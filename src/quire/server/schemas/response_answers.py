"""The answers of /v1/responses: the response object and its output items. The events that tell of them are made in
response_writer.py."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct):
    text: str
    annotations: list[str] = field(default_factory=list)
    """There are none."""
    logprobs: list[str] = field(default_factory=list)
    type: Literal["output_text"] = "output_text"


class ReasoningText(Struct):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class OutputMessage(Struct):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class OutputReasoning(Struct):
    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[str] = field(default_factory=list)
    type: Literal["reasoning"] = "reasoning"


class OutputFunctionCall(Struct):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    type: Literal["function_call"] = "function_call"


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0
    """OpenAI charges for these; here the cache is filled without being asked."""


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    code: str
    message: str


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseAnswer(Struct, kw_only=True):
    """What the request asked for, and what came of it."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[Any] = field(default_factory=list)
    """Output items."""
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str
    user: str | None
    background: bool = False
    object: Literal["response"] = "response"


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class DeletedResponse(Struct):
    id: str
    deleted: bool = True
    object: Literal["response"] = "response"


class InputItems(Struct):
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"
