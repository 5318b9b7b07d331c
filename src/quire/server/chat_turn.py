"""From a conversation to a prompt, and from the model's text to an answer; the same for every chat API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.core.structured_outputs import StructuredOutputs
from quire.engine.chat_template import plain_message, render_chat
from quire.engine.input_processor import Prompt
from quire.errors import InvalidRequestError
from quire.server.answer_parser import AnswerFormat, AnswerParser, choose_answer_format
from quire.server.reasoning.registry import prompt_opens_reasoning
from quire.server.state import ServerState
from quire.server.tools.constraint import tool_constraint
from quire.server.tools.definitions import NO_TOOLS, Tool, ToolChoice
from quire.server.tools.prompt import for_template


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat request says, whichever API it came by. Messages are in the shape of chat completions."""

    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = NO_TOOLS
    parallel: bool = True
    """Several calls in one answer are welcome."""
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False

    @property
    def usable_tools(self) -> tuple[Tool, ...]:
        if self.choice.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if self.choice.allowed is None or tool.name in self.choice.allowed)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """The prompt, and how to read what the model answers to it."""

    text: str
    token_ids: list[int]
    conversation: Conversation
    answer_format: AnswerFormat
    structure: StructuredOutputs | None = None
    """What the answer must be like."""
    structure_field: str | None = None
    """The request's field that says so."""
    follows_shape: bool = False
    """Structured output shapes the text from its first token on: no reasoning comes before it, whatever the prompt
    opened."""

    @property
    def prompt(self) -> Prompt:
        return {"prompt": self.text, "prompt_token_ids": self.token_ids}

    @property
    def reads_marks(self) -> bool:
        """Whether the text may be more than content, so that it must go through a parser."""
        return self.answer_format.reasoning is not None or bool(self.conversation.usable_tools)

    @property
    def shows_special_tokens(self) -> bool:
        """Whether the parser needs to see special tokens; the request's skip_special_tokens must be false then."""
        return self.reads_marks and not self.answer_format.skips_special_tokens

    @property
    def continued(self) -> str:
        """The text of the last message, where the answer goes on with it."""
        messages = self.conversation.messages
        if not self.conversation.continue_final_message:
            return ""
        content = plain_message(messages[-1], len(messages) - 1).get("content")
        return content if isinstance(content, str) else ""

    @property
    def _opens_reasoning(self) -> bool:
        style = self.answer_format.reasoning
        return style is not None and prompt_opens_reasoning(style, self.text, self.continued)

    def parser(self) -> AnswerParser:
        """For one sample."""
        if not self.reads_marks:
            return AnswerParser()
        conversation = self.conversation
        return self.answer_format.parser(
            conversation.usable_tools,
            conversation.choice,
            parallel=conversation.parallel,
            starts_inside=self._opens_reasoning and not self.follows_shape,
        )

    def structured(self, wanted: tuple[StructuredOutputs, str] | None) -> ChatTurn:
        """The turn with the shape that its answer must have. `wanted` is what the request asks for, and its field that does so.

        JSON is `wanted` of the text, so calls may come instead of it. Raises InvalidRequestError for another shape beside a call that must be made.
        """
        conversation, answer_format, choice = self.conversation, self.answer_format, self.conversation.choice
        structure, field = wanted or (None, None)
        schema = None if structure is None else structure.json_schema
        grammar = tool_constraint(
            conversation.usable_tools,
            choice,
            answer_format.tools,
            parallel=conversation.parallel,
            reasoning=answer_format.reasoning,
            starts_inside_reasoning=self._opens_reasoning,
            token_ids=answer_format.token_ids,
            otherwise=schema,
        )
        if grammar is None:
            return replace(self, structure=structure, structure_field=field, follows_shape=structure is not None)
        if structure is not None and schema is None:
            raise InvalidRequestError(
                f"tool_choice demands a call and {field} another shape, but an answer has one only; drop one of them.",
                field="tool_choice",
                value=choice.name or choice.mode,
            )
        field = "tools" if field is None or choice.forces_call else field
        return replace(self, structure=StructuredOutputs(grammar=grammar), structure_field=field)


async def take_turn(state: ServerState, conversation: Conversation, *, must_fit: bool = False) -> ChatTurn:
    """Renders and tokenizes on a thread. Raises InvalidRequestError, ChatTemplateError.

    `must_fit`: nothing will be cut off, so a text that cannot fit is refused before it is tokenized.
    """
    if conversation.chat_template is not None and not state.config.trust_request_chat_template:
        raise InvalidRequestError(
            "chat_template is a program, and this server does not run those of requests; leave it out, or start the"
            " server with --trust-request-chat-template.",
            field="chat_template",
        )
    state.connection.inputs.check_task("generate")
    return await asyncio.to_thread(_render, state, conversation, must_fit)


def _render(state: ServerState, conversation: Conversation, must_fit: bool) -> ChatTurn:
    tokenizer = state.llm.tokenizer
    answer_format = model_answer_format(state)
    plain = [plain_message(message, index) for index, message in enumerate(conversation.messages)]
    messages, tools = for_template(plain, conversation.usable_tools, answer_format.tools, answer_format.chat_template)
    text = render_chat(
        tokenizer,
        messages,
        chat_template=conversation.chat_template or state.chat_template,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        tools=tools,
        documents=conversation.documents,
        chat_template_kwargs=conversation.chat_template_kwargs,
    )
    if must_fit:
        state.connection.inputs.check_could_fit(text)
    token_ids = tokenizer.encode(text, add_special_tokens=conversation.add_special_tokens)
    return ChatTurn(text, token_ids, conversation, answer_format)


def model_answer_format(state: ServerState) -> AnswerFormat:
    """How this server's model marks calls and reasoning; found out once, when the model is known."""
    if state.answer_format is None:
        state.answer_format = choose_answer_format(
            state.llm.tokenizer,
            state.chat_template,
            tool_call_parser=state.config.tool_call_parser,
            reasoning_parser=state.config.reasoning_parser,
        )
    return state.answer_format


def room_for_prompt(state: ServerState, max_tokens: int | None) -> int:
    """Tokens beside an answer of `max_tokens`, or of half of the context if that is less."""
    max_model_len = state.llm.info.max_model_len
    return max_model_len - min(max_tokens or 1, max_model_len // 2)


def truncated(state: ServerState, token_ids: list[int], limit: int | None, max_tokens: int | None) -> list[int]:
    """The last tokens of a prompt, behind its BOS if it has one. `limit` -1: as many as fit with an answer of `max_tokens`."""
    if limit is None:
        return token_ids
    if limit == -1:
        limit = room_for_prompt(state, max_tokens)
    if len(token_ids) <= limit:
        return token_ids
    bos = token_ids[:1] if token_ids[0] == state.llm.tokenizer.bos_token_id and limit > 1 else []
    return bos + token_ids[len(token_ids) - (limit - len(bos)) :]
