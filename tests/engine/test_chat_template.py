"""Chat templates render as transformers renders them, from plain data only."""

from __future__ import annotations

from typing import Any

import pytest
from small_tokenizers import byte_level_json, tokenizer_files
from transformers.utils.chat_template_utils import render_jinja_template

from quire.engine.chat_template import render_chat
from quire.engine.tokenizer import Tokenizer
from quire.errors import ChatTemplateError, InvalidRequestError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = """{{ bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate...') }}
    {%- endif %}
    {{- '[' ~ message.role ~ '] ' }}{% if loop.first and system is defined %}{{ system }} {% endif %}
    {%- if message.content is string %}{{ message.content | trim }}{% else %}
        {%- for part in message.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}
"""
TOOLS = """{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ tool.function.parameters | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=-1, seen=[]) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% set ns.seen = ns.seen + [message.content] %}{% break %}{% endif %}
{%- endfor %}
{%- macro call(c) %}<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>{% endmacro %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.tool_calls is defined %}{% for c in message.tool_calls %}{{ call(c) }}{% endfor %}
    {%- else %}{% generation %}{{ message.role | upper }}: {{ message.content.split('</think>')[-1].lstrip('\n') }}{% endgeneration %}
    {%- endif %}
    {{- message.reasoning_content if message.reasoning_content is defined }}
{% endfor %}
{%- if documents %}{% for d in documents %}{{ d.title ~ ': ' ~ d.text }}{% endfor %}{% endif %}
{{- ns.last }} {{ ns.seen | join(',') }} {{ '%05.1f' % 3.14159 }} {{ "{:>4}".format(7) }} {{ '-' * 3 }} {{ 2 ** 5 }}
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
"""
TEMPLATES = {"chatml": CHATML, "trimming": TRIMMING, "tools": TOOLS}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "<b>wie ist's?</b> é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi"}],
    "several": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": " 日本? "},
        {"role": "assistant", "content": "<think>hm</think>\nyes ", "reasoning": "because"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"n": 1.5}}}],
        },
        {"role": "user", "content": "42"},
    ],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
}


def tokenizer_with(template: str | dict[str, str] | None) -> Tokenizer:
    templates = template if isinstance(template, dict) else {} if template is None else {"default": template}
    return Tokenizer(tokenizer_files(byte_level_json(), chat_templates=templates))


def expected(template: str, messages: list[dict[str, Any]], **options: Any) -> str | type[Exception]:
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=template, bos_token="<s>", eos_token="</s>", **options
        )
    except Exception:
        return ChatTemplateError
    return str(rendered[0])


OPTIONS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "tools": [TOOL]},
    {"add_generation_prompt": True, "documents": [{"title": "T", "text": "x"}]},
    {"add_generation_prompt": True, "enable_thinking": False},
]
CONTINUED: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
# The third template changes the last message, which transformers refuses to continue.
CASES = [(name, options) for name in TEMPLATES for options in OPTIONS]
CASES += [(name, CONTINUED) for name in ("chatml", "trimming")]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_text_is_that_of_transformers(name: str, conversation: str, options: dict[str, Any]) -> None:
    messages = CONVERSATIONS[conversation]
    if conversation == "parts" and name != "trimming":
        with pytest.raises(InvalidRequestError, match="takes text only"):
            render_chat(tokenizer_with(TEMPLATES[name]), messages)
        return
    own = {key: value for key, value in options.items() if key != "enable_thinking"}
    kwargs = {key: value for key, value in options.items() if key == "enable_thinking"}
    try:
        text: str | type[Exception] = render_chat(
            tokenizer_with(TEMPLATES[name]), messages, chat_template_kwargs=kwargs, **own
        )
    except ChatTemplateError:
        text = ChatTemplateError
    assert text == expected(TEMPLATES[name], messages, **options)


def test_a_template_that_raises_passes_its_reason_on() -> None:
    messages = [{"role": "assistant", "content": "first"}]
    with pytest.raises(ChatTemplateError, match=r"Roles must alternate\.\.\."):
        render_chat(tokenizer_with(TRIMMING), messages)


def test_messages_are_not_changed() -> None:
    messages = [{"role": "assistant", "content": "go on", "tool_calls": None}]
    text = render_chat(tokenizer_with(CHATML), messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>assistant\ngo on"
    assert messages == [{"role": "assistant", "content": "go on", "tool_calls": None}]


def test_the_rendered_bos_is_the_only_one() -> None:
    tokenizer = tokenizer_with(TRIMMING)
    text = render_chat(tokenizer, CONVERSATIONS["one"])
    for add_special_tokens in (True, False):
        assert tokenizer.encode(text, add_special_tokens).count(263) == 1


def test_which_template_is_taken() -> None:
    tokenizer = tokenizer_with({"default": "plain", "tool_use": "tools", "rag": "documents"})
    hello = CONVERSATIONS["one"]
    assert render_chat(tokenizer, hello) == "plain"
    assert render_chat(tokenizer, hello, tools=[TOOL]) == "tools"
    assert render_chat(tokenizer, hello, chat_template="rag") == "documents"
    assert render_chat(tokenizer, hello, chat_template="{{ messages[0].content }}!") == "Hi!"
    with pytest.raises(ChatTemplateError, match="no chat template, so it cannot chat; complete plain text instead, or"):
        render_chat(tokenizer_with(None), hello)


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "bos_token", "tokenize", "chat_template"]
)
def test_cve_2025_62426_kwargs_cannot_replace_what_the_engine_sets(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as raised:
        render_chat(tokenizer_with(CHATML), CONVERSATIONS["one"], chat_template_kwargs={name: 1})
    assert raised.value.field == "chat_template_kwargs"


class HasMethods:
    role = "user"

    def delete_everything(self) -> str:
        raise AssertionError("a template called a method")


deep: list[Any] = []
for _ in range(100):
    deep = [deep]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages"),
        ([{"content": "x"}], "messages"),
        ([{"role": 1, "content": "x"}], "messages"),
        ([{"role": "user", "content": 5}], "messages"),
        ([{"role": "user", "content": True}], "messages"),
        ([HasMethods()], "messages"),
        ([{"role": "user", "content": HasMethods()}], "messages[0]"),
        ([{"role": "user", "content": deep}], "messages[0]"),
        ([{"role": "user", "content": b"bytes"}], "messages[0]"),
    ],
)
def test_messages_that_are_no_plain_data_are_refused(messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        render_chat(tokenizer_with(CHATML), messages)
    assert raised.value.field == field


def test_documents_are_a_list() -> None:
    documents: Any = 5
    with pytest.raises(InvalidRequestError, match=r"documents must be a list, got 5\."):
        render_chat(tokenizer_with(CHATML), CONVERSATIONS["one"], documents=documents)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_generation_prompt": True}, "exclude each other"),
        ({"messages": [{"role": "user"}]}, "text to continue"),
    ],
)
def test_what_cannot_be_continued(options: dict[str, Any], message: str) -> None:
    arguments = {"messages": CONVERSATIONS["one"], "add_generation_prompt": False} | options
    with pytest.raises(InvalidRequestError, match=message):
        render_chat(tokenizer_with(CHATML), continue_final_message=True, **arguments)


@pytest.mark.parametrize(("template", "times"), [("x", 0), ("{{ messages[0].content * 2 }}", 2)])
def test_a_last_message_that_is_left_out_or_repeated_cannot_be_continued(template: str, times: int) -> None:
    tokenizer = tokenizer_with(template)
    with pytest.raises(ChatTemplateError, match=f"the last message {times} times"):
        render_chat(tokenizer, CONVERSATIONS["one"], add_generation_prompt=False, continue_final_message=True)
