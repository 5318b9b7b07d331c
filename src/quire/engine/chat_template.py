"""A conversation becomes the text of a prompt, through the template that comes with the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any

from quire.engine.template_budget import TemplateLimits
from quire.engine.tokenizer import Tokenizer
from quire.errors import ChatTemplateError, InvalidRequestError

RESERVED_NAMES = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("tokenize", "add_special_tokens", "tokenizer", "raise_exception", "strftime_now"),
        *("namespace", "dict", "range", "bos_token", "eos_token", "unk_token", "pad_token"),
    }
)
"""What chat_template_kwargs may not replace."""

MAX_INPUT_DEPTH = 64
_CONTINUE_HERE = "\ue000quire:continue\ue001"
_MARK = _CONTINUE_HERE + " "
"""The space shows whether the template trims texts: then it trims the one to continue, too."""
ROLES_OF_OTHER_NAME = {"developer": "system"}
"""OpenAI's name for what open models' templates know as the system's."""
_READS_PARTS = re.compile(r"\bin\s+\w+(?:\.content\b|\[['\"]content['\"]\])")
"""Of a template that goes through the parts of a content itself."""
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **template: Any) -> dict[str, Any]:
    """A conversation as a `Prompt`; keyword arguments are those of `render_chat`."""
    text = render_chat(tokenizer, messages, **template)
    # The template wrote its own special tokens: adding more would double the BOS.
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    limits: TemplateLimits | None = None,
) -> str:
    """The prompt's text. Its special tokens are written out: encode it with add_special_tokens=False.

    `chat_template` is a template, or the name of one of the model's own. `continue_final_message` ends the text where
    the last message ends, so that the model goes on with it. Messages, tools, documents and kwargs are JSON values;
    a message's None fields count as absent. Raises InvalidRequestError for bad input, ChatTemplateError if the
    template fails, asks for too much (see `quire.engine.template_sandbox`) or tries to leave its sandbox.
    """
    if continue_final_message and add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other: the prompt either ends within the"
            " last message or opens a new one; set one of them to false.",
            field="continue_final_message",
        )
    given: object = messages
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidRequestError(
            f"A conversation is a list of messages, got {type(given).__name__}.", field="messages"
        )
    _check_kind("chat_template", chat_template, str, "text")
    _check_kind("tools", tools, list | tuple, "a list of dicts")
    for tool in tools or ():
        _check_kind("tools", tool, Mapping, "a list of dicts")
    _check_kind("documents", documents, list | tuple, "a list")
    _check_kind("chat_template_kwargs", chat_template_kwargs, Mapping, "a dict")
    template = _choose_template(tokenizer, chat_template, tools is not None)
    read = _checked_message if _READS_PARTS.search(template) else plain_message
    conversation = [read(message, index) for index, message in enumerate(messages)]
    if not conversation:
        raise InvalidRequestError("The conversation has no messages; give at least one.", field="messages")
    if continue_final_message:
        _mark_end(conversation[-1])
    variables = {
        **tokenizer.special_tokens,
        **_checked_kwargs(chat_template_kwargs or {}),
        "messages": conversation,
        "tools": None if tools is None else _plain(list(tools), "tools"),
        "documents": None if documents is None else _plain(list(documents), "documents"),
        "add_generation_prompt": add_generation_prompt,
    }
    text = _render(template, variables, limits or TemplateLimits())
    return _cut_at_mark(text) if continue_final_message else text


def _check_kind(field: str, value: object, kind: type | UnionType, wanted: str) -> None:
    """Raises InvalidRequestError for what is there and of another kind."""
    if value is not None and not isinstance(value, kind):
        raise InvalidRequestError(f"{field} must be {wanted}, got {value!r:.100}.", field=field)


def _choose_template(tokenizer: Tokenizer, chat_template: str | None, has_tools: bool) -> str:
    templates = tokenizer.chat_templates
    if chat_template is not None:
        return templates.get(chat_template, chat_template)
    if has_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" in templates:
        return templates["default"]
    raise ChatTemplateError(
        "The model has no chat template, so it cannot chat; complete plain text instead, or take an instruction-tuned"
        " model, or give LLM.chat or `quire serve` a chat_template."
    )


def _render(source: str, variables: Mapping[str, Any], limits: TemplateLimits) -> str:
    # jinja2 is loaded with the first conversation, not with the engine.
    from quire.engine.template_sandbox import compile_template, render_template

    # Whatever a template raises is its own failure: it runs arbitrary expressions.
    try:
        template = compile_template(source)
    except Exception as error:
        raise ChatTemplateError(f"The chat template could not be compiled ({_reason(error)}); correct it.") from error
    try:
        return render_template(template, variables, limits)
    except Exception as error:
        raise ChatTemplateError(
            f"The chat template failed ({_reason(error)}); check that it fits these messages and fields."
        ) from error


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:500]


def _checked_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    reserved = sorted(RESERVED_NAMES & set(kwargs))
    if reserved:
        raise InvalidRequestError(
            f"chat_template_kwargs must not set {', '.join(reserved)}: the engine sets them itself; use the request's"
            " own fields.",
            field="chat_template_kwargs",
            value=reserved,
        )
    plain: dict[str, Any] = _plain(dict(kwargs), "chat_template_kwargs")
    return plain


def plain_message(message: object, index: int) -> dict[str, Any]:
    """As templates of models for text take it: content parts become one text. Raises InvalidRequestError."""
    plain = _checked_message(message, index)
    if isinstance(plain.get("content"), list):
        parts = enumerate(plain["content"])
        plain["content"] = "\n".join(_part_text(part, f"messages[{index}].content[{at}]") for at, part in parts)
    return plain


def _checked_message(message: object, index: int) -> dict[str, Any]:
    """In plain JSON types, in the words that templates know. An answer that was empty has an empty text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(
            f"Message {index} must be a dict with a 'role', and a 'content' in most cases, got {message!r:.200}.",
            field="messages",
        )
    # A message of tool calls keeps its empty content: templates tell it by that.
    calls = bool(message.get("tool_calls"))
    given = {name: value for name, value in message.items() if value is not None or (calls and name == "content")}
    plain: dict[str, Any] = _plain(given, f"messages[{index}]")
    if isinstance(plain.get("content"), bool | int | float):
        raise InvalidRequestError(
            f"messages[{index}].content must be text or a list of parts, got {plain['content']!r}.", field="messages"
        )
    plain["role"] = ROLES_OF_OTHER_NAME.get(plain["role"], plain["role"])
    if plain["role"] == "assistant" and not calls:
        plain.setdefault("content", "")
    # Templates read reasoning under one of several names; whichever was given, they find it.
    for name in _REASONING_NAMES:
        if name in plain:
            return {"thinking": plain[name], "reasoning_content": plain[name], **plain}
    return plain


def _part_text(part: object, field: str) -> str:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": kind}:
            raise InvalidRequestError(
                f"{field} has the type {kind!r:.100}, but the model takes text only: send parts like"
                ' {"type": "text", "text": "..."}.',
                field=field,
                value=kind,
            )
    raise InvalidRequestError(f'{field} must be {{"type": "text", "text": "..."}}, got {part!r:.100}.', field=field)


def _plain(value: object, field: str, depth: int = 0) -> Any:
    """The value in plain JSON types, so that a template meets no object with methods of its own."""
    if depth > MAX_INPUT_DEPTH:
        raise InvalidRequestError(f"{field} is nested deeper than {MAX_INPUT_DEPTH} levels; flatten it.", field=field)
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {str(key): _plain(item, field, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, field, depth + 1) for item in value]
    raise InvalidRequestError(
        f"{field} holds a {type(value).__name__}; only JSON values (text, numbers, lists, dicts) can be rendered.",
        field=field,
    )


def _mark_end(message: dict[str, Any]) -> None:
    """Put a mark behind the message's last text; where it comes out is where the model goes on."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return
    for block in reversed(content if isinstance(content, list) else []):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            block["text"] += _MARK
            return
    raise InvalidRequestError(
        "continue_final_message needs a last message with text to continue; give it content, or set it to false.",
        field="continue_final_message",
    )


def _cut_at_mark(text: str) -> str:
    num_marks = text.count(_CONTINUE_HERE)
    if num_marks != 1:
        raise ChatTemplateError(
            f"The chat template writes the last message {num_marks} times, so it cannot be continued; set"
            " continue_final_message to false."
        )
    end = text.index(_CONTINUE_HERE)
    return text[:end] if text.startswith(_MARK, end) else text[:end].rstrip()
