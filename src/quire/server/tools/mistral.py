"""Mistral: [TOOL_CALLS][{"name": …, "arguments": …}, …], and since 2025 [TOOL_CALLS]name[ARGS]{…}, once for each call."""

from __future__ import annotations

from dataclasses import replace

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import CallLayout, ToolFormat, nine_character_id


def _read_calls(reader: CallReader, marker: str) -> Reading[None]:
    if (yield from reader.peek_visible()) == "[":
        yield from _read_list(reader)
    else:
        yield from _read_named(reader)


def _read_list(reader: CallReader) -> Reading[None]:
    yield from reader.expect("[")
    yield from reader.read_call_object()
    while (yield from reader.peek_visible()) != "]":
        yield from reader.expect(",")
        yield from reader.read_call_object()
    reader.skip()
    reader.mark()


def _read_named(reader: CallReader) -> Reading[None]:
    name = yield from reader.read_name()
    if (yield from reader.take_literal("[CALL_ID]")):
        yield from reader.read_name()
    yield from reader.take_literal("[ARGS]")
    reader.name_call(name)
    yield from reader.read_arguments()
    reader.end_call()


MISTRAL = ToolFormat(
    name="mistral",
    markers=("[TOOL_CALLS]",),
    read_calls=_read_calls,
    layout=CallLayout(
        before="[TOOL_CALLS][",
        before_name='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        between=", ",
        after="]",
    ),
    signs=("[TOOL_CALLS]",),
    counter_signs=("[ARGS]",),
    make_id=nine_character_id,
)

MISTRAL_ARGS = replace(
    MISTRAL,
    name="mistral_args",
    layout=CallLayout(before_name="[TOOL_CALLS]", before_arguments="[ARGS]", after_arguments="", between=""),
    signs=("[ARGS]",),
    counter_signs=(),
    other_tokens=("[ARGS]", "[CALL_ID]"),
)
