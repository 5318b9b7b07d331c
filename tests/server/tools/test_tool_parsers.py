"""Every format: what samples mean, that it does not matter how they are cut, and that nothing is lost."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.tools.samples import (
    SAMPLES,
    Sample,
    collect_answer,
    content_only,
    parse_in_pieces,
    parse_whole,
    tool_parser,
)

import quire.server.tools as package
from quire.server.answer_events import ToolCallArguments, ToolCallStart, merge_events
from quire.server.answer_parser import AnswerParser
from quire.server.text_reader import Markers, TextReader
from quire.server.tools.literals import MAX_DEPTH
from quire.server.tools.registry import TOOL_FORMATS

SAMPLE_IDS = [f"{sample.tool_format}-{index}" for index, sample in enumerate(SAMPLES)]


@pytest.mark.parametrize("sample", SAMPLES, ids=SAMPLE_IDS)
def test_what_a_text_means(sample: Sample) -> None:
    assert parse_whole(sample.tool_format, sample.text) == sample.answer


@pytest.mark.parametrize("sample", SAMPLES, ids=SAMPLE_IDS)
def test_streamed_is_whole_wherever_the_text_is_cut(sample: Sample) -> None:
    text = sample.text
    whole = parse_in_pieces(tool_parser(sample.tool_format), [text])
    assert parse_in_pieces(tool_parser(sample.tool_format), text) == whole
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1) if len(text) <= 60 else [len(text)]:
            pieces = [text[:first], text[first:second], text[second:]]
            assert parse_in_pieces(tool_parser(sample.tool_format), pieces) == whole, pieces


@pytest.mark.parametrize("sample", SAMPLES, ids=SAMPLE_IDS)
def test_case_11_a_text_that_stops_anywhere_is_flushed(sample: Sample) -> None:
    """As after a stop string or at max_tokens. Without an announced call everything is content; with one, the rest
    of its arguments is flushed to it."""
    for end in range(len(sample.text)):
        text = sample.text[:end]
        events = parse_in_pieces(tool_parser(sample.tool_format), text)
        assert events == parse_in_pieces(tool_parser(sample.tool_format), [text])
        if not any(isinstance(event, ToolCallStart) for event in events):
            assert events == content_only(text)


def test_case_11_the_cut_arguments_are_all_there() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Os\\nlo", "days": [1, 25, true], "x": {"y": "z"}}}'
    start = text.index('{"city"')
    for end in range(start + 1, text.index("}}}") + 2):
        (call,) = parse_whole("hermes", text[:end]).tool_calls
        assert call.arguments.replace(" ", "") == text[start:end].replace(" ", "")


@pytest.mark.parametrize("name", ["hermes", "deepseek", "deepseek_v3_1"])
def test_a_mark_that_the_end_of_the_text_cuts_is_no_content(name: str) -> None:
    text = TOOL_FORMATS[name].layout.write([("now", {})])
    whole = parse_whole(name, text)
    for length in range(text.rindex("{}") + 3, len(text)):
        answer = parse_whole(name, text[:length])
        assert (answer.content, answer.tool_calls) == (None, whole.tool_calls), text[:length]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_arguments_stream_while_they_arrive(tool_format: str) -> None:
    """Deltas come before the call is complete, and never take anything back."""
    layout = TOOL_FORMATS[tool_format].layout
    begun = 'a="x, y' if layout.keyword_arguments else '{"a": "x, y'
    parser = tool_parser(tool_format)
    events = parser.feed(f"{layout.before}{layout.before_name}weather{layout.before_arguments}{begun}")
    assert events == [ToolCallStart(0, "id0", "weather"), ToolCallArguments(0, '{"a": "x, y')]
    assert parser.feed(" z") == [ToolCallArguments(0, " z")]
    assert parser.num_calls == 1


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["</tool_call>", "<tool_call>", "[TOOL_CALLS]", "\\", '"', "')", "}]", "\u2028"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
IDENTIFIERS = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)


@settings(max_examples=40, deadline=None)
@given(
    arguments=st.dictionaries(IDENTIFIERS, JSON_VALUES, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    data=st.data(),
)
@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_arguments_come_out_as_they_went_in(
    tool_format: str, arguments: dict[str, Any], ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    layout = TOOL_FORMATS[tool_format].layout
    if layout.keyword_arguments:
        written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    else:
        written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    call = f"{layout.before_name}weather{layout.before_arguments}{written}{layout.after_arguments}"
    text = f"{layout.before}{call}{layout.after}"
    cut = data.draw(st.integers(0, len(text)))
    answer = collect_answer(parse_in_pieces(tool_parser(tool_format), [text[:cut], text[cut:]]))
    assert answer.content is None
    (found,) = answer.tool_calls
    assert json.loads(found.arguments) == arguments


PIECES = (
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        ":",
        "=",
        '"',
        "'",
        "\\",
        "\\u00",
        "\n",
        " ",
        "*",
        "1",
        "-.5",
        "é",
        "null",
    ),
    *('"name"', '"arguments"', '"parameters"', '"weather"', "weather", "now", "[ARGS]", "[CALL_ID]", "```json", "True"),
    *('{"name": "now", "arguments": ', "[now(a=", 'function<｜tool▁sep｜>now\n```json\n{"a":'),
    *(marker for form in TOOL_FORMATS.values() for marker in (*form.markers, *form.other_tokens)),
)


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=25))
@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_nonsense_is_content_and_streams_like_the_whole(tool_format: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = parse_in_pieces(tool_parser(tool_format), [text])
    assert parse_in_pieces(tool_parser(tool_format), pieces) == whole
    assert parse_in_pieces(tool_parser(tool_format), text) == whole
    if not any(isinstance(event, ToolCallStart) for event in whole):
        assert whole == content_only(text)


def test_nesting_is_bounded() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    (call,) = parse_whole("hermes", f'<tool_call>{{"name": "now", "arguments": {{"a": {deep}}}}}').tool_calls
    assert json.loads(call.arguments)["a"] == json.loads(deep)
    too_deep = f'<tool_call>{{"arguments": {{"a": [{deep}]}}, "name": "now"}}'
    assert parse_whole("hermes", too_deep).content == too_deep


def test_one_call_where_parallel_calls_are_off() -> None:
    text = '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "weather"}</tool_call>'
    events = parse_in_pieces(tool_parser("hermes", max_calls=1), text)
    assert events == [ToolCallStart(0, "id0", "now"), ToolCallArguments(0, "{}")]


def test_mistral_ids_fit_its_templates() -> None:
    for name in ("mistral", "mistral_args"):
        assert re.fullmatch(r"[a-zA-Z0-9]{9}", TOOL_FORMATS[name].make_id())
    assert TOOL_FORMATS["hermes"].make_id() != TOOL_FORMATS["hermes"].make_id()


# One text each for the ways in which a parser can be made to read the same text again and again.
ADVERSARIAL = (
    *(("hermes", "", unit) for unit in ("<tool_call>", '<tool_call>{"name":', "<tool_c", " ", '<tool_call>{"a":[')),
    ("hermes", '<tool_call>{"name":"now","arguments":{"a":"', "\\n"),
    ("hermes", '<tool_call>{"arguments":{"a":"', "x"),
    ("hermes", '<tool_call>{"arguments":{"a":', "9"),
    ("hermes", '<tool_call>{"name":"now","arguments":{"a":[', "1, "),
    ("pythonic", "[", "now(a=1), "),
    ("pythonic", "", "[now("),
    ("llama3_json", "", '{"name":"now","parameters":{}};'),
    ("llama3_json", '{"name":', " "),
    ("mistral", "", "[TOOL_CALLS]["),
    ("mistral_args", "[TOOL_CALLS]", "f"),
    ("deepseek", "", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
)


@pytest.mark.parametrize(("tool_format", "head", "unit"), ADVERSARIAL)
@pytest.mark.parametrize("piece_chars", [1, 1 << 20])
def test_cve_2025_48887_the_work_grows_linearly(
    monkeypatch: pytest.MonkeyPatch, tool_format: str, head: str, unit: str, piece_chars: int
) -> None:
    """Counted: every call of a function, Python's own included, every character copied and every character that is
    searched for marks."""
    small, large = (
        _count_work(monkeypatch, tool_format, head + unit * (num_chars // len(unit)), piece_chars)
        for num_chars in (4_000, 8_000)
    )
    assert small > 100
    assert large <= 2.5 * small


def _count_work(monkeypatch: pytest.MonkeyPatch, tool_format: str, text: str, piece_chars: int) -> int:
    feed, search = TextReader.feed, Markers.search
    work = 0

    def count_copied(reader: TextReader, piece: str) -> None:
        feed(reader, piece)
        count(len(reader._text))

    def count_searched(markers: Markers, text: str, start: int) -> re.Match[str] | None:
        match = search(markers, text, start)
        count((len(text) if match is None else match.start()) - start)
        return match

    def count(num: int) -> None:
        nonlocal work
        work += num

    with monkeypatch.context() as patch:
        patch.setattr(TextReader, "feed", count_copied)
        patch.setattr(Markers, "search", count_searched)
        parser = tool_parser(tool_format)
        sys.setprofile(lambda frame, event, argument: count(1))
        try:
            for start in range(0, len(text), piece_chars):
                parser.feed(text[start : start + piece_chars])
            parser.finish()
        finally:
            sys.setprofile(None)
    return work


def test_cve_2025_9141_nothing_is_evaluated() -> None:
    """Code-like arguments stay strings, and code is no argument."""
    code = "__import__('os').system('touch /tmp/pwned')"
    (call,) = parse_whole("pythonic", f"[now(a={code!r})]").tool_calls
    assert json.loads(call.arguments) == {"a": code}
    for text in (f"[now(a={code})]", f"[now({code})]", "[now(a=f'{1+1}')]", "[now(a=1+1)]"):
        assert parse_whole("pythonic", text).content == text


def test_cve_2025_9141_no_source_file_evaluates() -> None:
    for path in Path(package.__path__[0]).glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & {"eval", "exec", "compile", "__import__"}, path


def test_whole_and_streamed_share_the_parser() -> None:
    sample = SAMPLES[2]
    streamed = parse_in_pieces(AnswerParser(None, tool_parser(sample.tool_format)), sample.text)
    assert collect_answer(streamed) == sample.answer
    assert streamed == merge_events(streamed)
