"""Calls written as Python: [f(a=1, b="x"), g()]; Llama 3.2 and 4, LFM2 and others, some of which wrap it in tokens."""

from __future__ import annotations

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import CallLayout, ToolFormat

_ENDS = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}


def _read_calls(reader: CallReader, marker: str) -> Reading[None]:
    yield from reader.expect("[")
    yield from _read_call(reader)
    while (yield from reader.peek_visible()) != "]":
        yield from reader.expect(",")
        if (yield from reader.peek_visible()) != "]":
            yield from _read_call(reader)
    reader.skip()
    reader.mark()
    if marker:
        yield from reader.take_wrapping(_ENDS[marker])


def _read_call(reader: CallReader) -> Reading[None]:
    reader.name_call((yield from reader.read_name()))
    yield from reader.expect("(")
    yield from reader.read_keyword_arguments()
    reader.end_call()


PYTHONIC = ToolFormat(
    name="pythonic",
    markers=tuple(_ENDS),
    read_calls=_read_calls,
    layout=CallLayout(
        before="[",
        before_name="",
        before_arguments="(",
        after_arguments=")",
        between=", ",
        after="]",
        keyword_arguments=True,
    ),
    signs=("[func_name1(", *_ENDS),
    bare_opener="[",
    other_tokens=tuple(_ENDS.values()),
)
