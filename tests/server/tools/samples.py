"""Texts as models write them, and what they mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quire.server.answer_events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    merge_events,
)
from quire.server.answer_parser import AnswerParser
from quire.server.tools.parser import ToolParser
from quire.server.tools.registry import TOOL_FORMATS

TOOL_NAMES = ("weather", "now", "f-1")


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON of an object; cut short where the model was cut short or wrote no JSON."""


@dataclass(frozen=True)
class ParsedAnswer:
    """A whole answer; empty content or reasoning is None."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


def collect_answer(events: Iterable[Event]) -> ParsedAnswer:
    """The whole answer that the events make."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
            case ToolCallArguments(index, text):
                arguments[index].append(text)
    calls = [ToolCall(start.id, start.name, "".join(texts)) for start, texts in zip(starts, arguments, strict=True)]
    return ParsedAnswer("".join(content) or None, "".join(reasoning) or None, tuple(calls))


def read_whole(parser: AnswerParser, text: str) -> ParsedAnswer:
    """The answer that a whole text is."""
    return collect_answer(parser.read(text, ends=True))


@dataclass(frozen=True)
class Sample:
    tool_format: str
    text: str
    content: str | None
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)"""

    @property
    def answer(self) -> ParsedAnswer:
        calls = [ToolCall(f"id{index}", name, arguments) for index, (name, arguments) in enumerate(self.calls)]
        return ParsedAnswer(self.content, None, tuple(calls))


def tool_parser(tool_format: str, max_calls: int | None = None) -> ToolParser:
    ids = itertools.count()
    numbered = replace(TOOL_FORMATS[tool_format], make_id=lambda: f"id{next(ids)}")
    return ToolParser(numbered, TOOL_NAMES, max_calls=max_calls)


def parse_in_pieces(parser: ToolParser | AnswerParser, pieces: Iterable[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merge_events([*events, *parser.finish()])


def parse_whole(tool_format: str, text: str) -> ParsedAnswer:
    return read_whole(AnswerParser(None, tool_parser(tool_format)), text)


def content_only(text: str) -> list[Event]:
    return [ContentDelta(text)] if text else []


SAMPLES = (
    # hermes, Qwen
    Sample("hermes", "Just words, <b>bold</b> < 3.", "Just words, <b>bold</b> < 3."),
    Sample(
        "hermes",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Z\\u00fcrich"}}\n</tool_call>',
        None,
        (("weather", '{"city": "Z\\u00fcrich"}'),),
    ),
    Sample(
        "hermes",
        'Let me see.\n<tool_call>{"name":"weather","arguments":{"a":[1,-2.5e3,{"b":{}}],"c":null}}</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>\n\n',
        "Let me see.\n",
        (("weather", '{"a": [1, -2.5e3, {"b": {}}], "c": null}'), ("now", "{}")),
    ),
    Sample("hermes", '\n<tool_call>{"name": "now"}</tool_call>\nDone.', "\nDone.", (("now", "{}"),)),
    Sample("hermes", '<tool_call>{"name": "unheard_of", "arguments": {}}', None, (("unheard_of", "{}"),)),
    Sample("hermes", '<tool_call>{"name": "now", "arguments": null}', None, (("now", "{}"),)),
    Sample("hermes", '<tool_call>{"name":"f-1","arguments":"{\\"a\\": \\"}\\"}"}', None, (("f-1", '{"a": "}"}'),)),
    Sample(
        "hermes",
        "<tool_call>{'name': 'f-1', 'arguments': {'a': True, 'b': 'it\\'s \"so\"', 'c': \"x\ny\",}}</tool_call>",
        None,
        (("f-1", '{"a": true, "b": "it\'s \\"so\\"", "c": "x\\ny"}'),),
    ),
    Sample(
        "hermes",
        '<tool_call>{"name":"f-1","arguments":{"code":"</tool_call> __import__(\'os\').system(\'x\')"}}</tool_call>',
        None,
        (("f-1", "{\"code\": \"</tool_call> __import__('os').system('x')\"}"),),
    ),
    # Llama 3
    Sample("llama3_json", '{"name": "now", "parameters": {}}', None, (("now", "{}"),)),
    Sample(
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}; '
        '{"name": "now", "parameters": {"zone": "{utc}"}}',
        None,
        (("weather", '{"city": "Oslo"}'), ("now", '{"zone": "{utc}"}')),
    ),
    Sample("llama3_json", ' {"name": "Ada", "parameters": {}}', ' {"name": "Ada", "parameters": {}}'),
    Sample("llama3_json", '{"name": "now"}', '{"name": "now"}'),
    Sample(
        "llama3_json",
        '{"items": [{"name": "now", "parameters": {}}]}',
        '{"items": [{"name": "now", "parameters": {}}]}',
    ),
    Sample("llama3_json", 'So: {"name": "now", "parameters": {}}', 'So: {"name": "now", "parameters": {}}'),
    Sample("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    # Mistral
    Sample(
        "mistral",
        'Hm.[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}, '
        '{"name": "now", "arguments": {}}]',
        "Hm.",
        (("weather", '{"city": "Oslo"}'), ("now", "{}")),
    ),
    Sample("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]"),
    Sample(
        "mistral_args",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]f-1[CALL_ID]a1b2c3d4e[ARGS]{}[TOOL_CALLS]now{"z": 0}',
        None,
        (("weather", '{"city": "Oslo"}'), ("f-1", "{}"), ("now", '{"z": 0}')),
    ),
    # pythonic
    Sample(
        "pythonic",
        "[weather(city='Zürich', days=[1, 2], deep={'k': (None, -.5)}), now()]",
        None,
        (("weather", '{"city": "Zürich", "days": [1, 2], "deep": {"k": [null, -0.5]}}'), ("now", "{}")),
    ),
    Sample(
        "pythonic",
        '<|tool_call_start|>[strange(a="\\x41\\u00e9\\d\'", n=1_000)]<|tool_call_end|>ok',
        "ok",
        (("strange", '{"a": "A\\u00e9\\\\d\'", "n": 1000}'),),
    ),
    Sample("pythonic", '[f-1(**{"a": 1}), now(z=True,)]', None, (("f-1", '{"a": 1}'), ("now", '{"z": true}'))),
    Sample("pythonic", "[1, 2, 3]", "[1, 2, 3]"),
    Sample("pythonic", "[other(a=1)]", "[other(a=1)]"),
    Sample("pythonic", "[now(__import__('os').getcwd())]", "[now(__import__('os').getcwd())]"),
    Sample("pythonic", "[now(a=__import__('os').getcwd())]", "[now(a=__import__('os').getcwd())]"),
    # DeepSeek
    Sample(
        "deepseek",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "```"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Well.",
        (("weather", '{"city": "```"}'), ("now", "{}")),
    ),
    Sample(
        "deepseek_v3_1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        None,
        (("weather", '{"city": "Oslo"}'), ("now", "{}")),
    ),
    Sample("deepseek", "<｜tool▁calls▁end｜>", "<｜tool▁calls▁end｜>"),
    # no calls, though they look like some
    Sample("hermes", "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>"),
    Sample("hermes", '<tool_call>{"name": 7, "arguments": {}}', '<tool_call>{"name": 7, "arguments": {}}'),
    Sample("hermes", '<tool_call>{"name": "a b", "arguments": {}}', '<tool_call>{"name": "a b", "arguments": {}}'),
    Sample("hermes", '<tool_call>{"name": "now", "arguments": [1]}', '<tool_call>{"name": "now", "arguments": [1]}'),
    Sample("hermes", '<tool_call>{"name": "now", "name": "now"}', '<tool_call>{"name": "now", "name": "now"}'),
    Sample("hermes", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>'),
    Sample(
        "hermes",
        '<tool_call>{"name": <tool_call>{"name": "now", "arguments": {}}</tool_call>',
        '<tool_call>{"name": ',
        (("now", "{}"),),
    ),
    Sample("hermes", '<tool_call>{"name":"f-1","arguments":"{} {}"}', '<tool_call>{"name":"f-1","arguments":"{} {}"}'),
    # a call that was announced and then goes wrong keeps what it had, the rest is content
    Sample(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": 1, b: 2}}</tool_call>',
        ", b: 2}}</tool_call>",
        (("now", '{"a": 1'),),
    ),
    Sample(
        "llama3_json",
        '{"name": "now", "parameters": {"a": 1 {"name": "now", "parameters": {}}',
        ' {"name": "now", "parameters": {}}',
        (("now", '{"a": 1'),),
    ),
    Sample("hermes", '<tool_call>{"name": "now"}\n Done.', "\n Done.", (("now", "{}"),)),
    # … and one that is cut off keeps it all
    Sample("hermes", '<tool_call>{"name": "now", "arguments": {"a": [1, 23', None, (("now", '{"a": [1, 23'),)),
)
