"""DeepSeek V3 and R1 put the arguments in a JSON fence below the name; V3.1 puts them right behind it."""

from __future__ import annotations

from dataclasses import replace

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import CallLayout, ToolFormat

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"


def _read_calls(reader: CallReader, marker: str) -> Reading[None]:
    if marker == _CALLS:
        yield from reader.expect(_CALL)
    yield from _read_call(reader)
    while (yield from reader.take_wrapping(_CALL)):
        yield from _read_call(reader)
    yield from reader.take_wrapping(_CALLS_END)


def _read_call(reader: CallReader) -> Reading[None]:
    name = yield from reader.read_name()
    yield from reader.expect(_SEPARATOR)
    is_fenced = (yield from reader.peek_visible()) != "{"
    if is_fenced:  # what stood before the separator was the kind of tool, "function"
        name = yield from reader.read_name()
        yield from reader.expect("```json")
    reader.name_call(name)
    yield from reader.read_arguments()
    reader.end_call()
    if is_fenced:
        yield from reader.take_wrapping("```")
    yield from reader.take_wrapping(_CALL_END)


DEEPSEEK = ToolFormat(
    name="deepseek",
    markers=(_CALLS, _CALL),
    read_calls=_read_calls,
    layout=CallLayout(
        before=_CALLS,
        before_name=f"{_CALL}function{_SEPARATOR}",
        before_arguments="\n```json\n",
        after_arguments=f"\n```{_CALL_END}",
        between="\n",
        after=_CALLS_END,
    ),
    signs=(_CALLS,),
    other_tokens=(_CALLS_END, _CALL_END, _SEPARATOR),
    arguments_as_text=True,
)

DEEPSEEK_V3_1 = replace(
    DEEPSEEK,
    name="deepseek_v3_1",
    layout=CallLayout(
        before=_CALLS,
        before_name=_CALL,
        before_arguments=_SEPARATOR,
        after_arguments=_CALL_END,
        between="",
        after=_CALLS_END,
    ),
    counter_signs=("```json",),
)
