"""The format of calls shows in the chat template."""

from __future__ import annotations

import pytest

from quire.errors import InvalidRequestError
from quire.server.tools.registry import FALLBACK_FORMAT, TOOL_FORMATS, choose_tool_format

LOOP = "{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}"


@pytest.mark.parametrize(
    ("marks", "name"),
    [
        ('<tool_call>\n{"name": <function-name>', "hermes"),  # Qwen 2.5, Qwen 3
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name and', "llama3_json"),
        ('<|python_tag|>" + tool_call.name + ".call("', "llama3_json"),
        ("[AVAILABLE_TOOLS][ [TOOL_CALLS][", "mistral"),
        ("[TOOL_CALLS]' + name + '[ARGS]", "mistral_args"),
        ("[func_name1(params_name1=params_value1", "pythonic"),
        ("<|tool_call_start|>[", "pythonic"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\n```json", "deepseek"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>", "deepseek_v3_1"),
        ("<tool_call>\n<function=example>\n<parameter=x>", None),
        ("Write 'Action:' followed by a json-formatted list", None),
    ],
)
def test_detection(marks: str, name: str | None) -> None:
    found = choose_tool_format("auto", LOOP + marks)
    assert (found and found.name) == name


def test_a_template_without_tools_leaves_it_to_the_fallback() -> None:
    for template in (None, "{% for message in messages %}{{ message.content }}{% endfor %}"):
        assert choose_tool_format("auto", template) is FALLBACK_FORMAT


def test_the_name_decides() -> None:
    assert choose_tool_format("none", LOOP + "<tool_call>") is None
    for name, tool_format in TOOL_FORMATS.items():
        assert choose_tool_format(name, LOOP + "<tool_call>") is tool_format
    with pytest.raises(InvalidRequestError, match="hermes"):
        choose_tool_format("hermez", None)
