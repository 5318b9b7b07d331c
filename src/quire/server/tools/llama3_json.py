"""Llama 3.1 and later: {"name": …, "parameters": …} as the whole answer, or behind <|python_tag|>."""

from __future__ import annotations

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import CallLayout, ToolFormat


def _read_calls(reader: CallReader, marker: str) -> Reading[None]:
    yield from reader.read_call_object()
    while (yield from reader.take_wrapping(";")):
        yield from reader.read_call_object()


LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    markers=("<|python_tag|>",),
    read_calls=_read_calls,
    layout=CallLayout(
        before_name='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
    ),
    signs=("<|python_tag|>", '"parameters": dictionary of argument name'),
    bare_opener="{",
)
