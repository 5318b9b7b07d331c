"""Hermes, Qwen 2.5 and 3, and models without a format of their own: <tool_call>{"name": …, "arguments": …}</tool_call>."""

from __future__ import annotations

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import CallLayout, ToolFormat


def _read_calls(reader: CallReader, marker: str) -> Reading[None]:
    yield from reader.read_call_object()
    yield from reader.take_wrapping("</tool_call>")


HERMES = ToolFormat(
    name="hermes",
    markers=("<tool_call>",),
    read_calls=_read_calls,
    layout=CallLayout(
        before_name='<tool_call>\n{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}\n</tool_call>",
        between="\n",
    ),
    signs=("<tool_call>",),
    counter_signs=("<function=", "<arg_key>"),
    other_tokens=("</tool_call>",),
)
