"""Reasoning, content and calls of one answer together; the model's format as the server keeps it."""

from __future__ import annotations

import json

from tests.engine.small_tokenizers import byte_level_json, tokenizer_files
from tests.server.tools.samples import parse_in_pieces, read_whole, tool_parser

from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart, merge_events
from quire.server.answer_parser import AnswerFormat, AnswerParser, choose_answer_format
from quire.server.reasoning.parser import ReasoningParser
from quire.server.reasoning.registry import REASONING_STYLES
from quire.server.tools.constraint import tool_constraint
from quire.server.tools.definitions import NO_TOOLS, ToolChoice, parse_tools
from quire.server.tools.prompt import for_template
from quire.server.tools.registry import TOOL_FORMATS

QWEN3 = "{%- if tools %}<tool_call>{%- endif %}{{ content.split('</think>') }}"
TOOLS = parse_tools(
    [{"type": "function", "function": {"name": "now"}}, {"type": "function", "function": {"name": "f-1"}}]
)
AUTO = ToolChoice("auto")
TEXT = '<think>\nI need the time: <tool_call>.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {"z": 1}}\n</tool_call>'


FIRST_ADDED_ID = 266


def tokenizer_with(added: dict[str, bool], **chat_templates: str) -> Tokenizer:
    """Single bytes and these tokens, special ones or not."""
    tokenizer_json = byte_level_json()
    template = tokenizer_json["added_tokens"][0]
    tokenizer_json["added_tokens"] += [
        {**template, "id": FIRST_ADDED_ID + index, "content": text, "special": special}
        for index, (text, special) in enumerate(added.items())
    ]
    return Tokenizer(tokenizer_files(tokenizer_json, chat_templates=chat_templates))


def format_of(chat_template: str, added: dict[str, bool] | None = None, **parsers: str) -> AnswerFormat:
    return choose_answer_format(tokenizer_with(added or {}, default=chat_template), **parsers)


def test_reasoning_then_calls_cut_anywhere() -> None:
    def parser() -> AnswerParser:
        return AnswerParser(ReasoningParser(REASONING_STYLES["think"]), tool_parser("hermes"), ["<|end|>"])

    expected = [
        ReasoningDelta("I need the time: <tool_call>."),
        ToolCallStart(0, "id0", "now"),
        ToolCallArguments(0, '{"z": 1}'),
    ]
    for text in (TEXT, TEXT + "<|end|>", f"<|end|>{TEXT}"):
        for cut in range(len(text) + 1):
            assert parse_in_pieces(parser(), [text[:cut], text[cut:]]) == expected
        assert parse_in_pieces(parser(), text) == expected


def test_of_marks_that_begin_alike_the_shorter_one_is_read_wherever_the_text_is_cut() -> None:
    text = "a<|end|>b<|endx"
    for cut in range(len(text) + 1):
        for hidden in (["<|end|>", "<|end"], ["<|end", "<|end|>"]):
            assert parse_in_pieces(AnswerParser(hidden=hidden), [text[:cut], text[cut:]]) == [ContentDelta("a|>bx")]


def test_every_cut_short_answer_is_flushed() -> None:
    for end in range(len(TEXT)):
        parser = AnswerParser(ReasoningParser(REASONING_STYLES["think"]), tool_parser("hermes"))
        streamed = parse_in_pieces(parser, TEXT[:end])
        parser = AnswerParser(ReasoningParser(REASONING_STYLES["think"]), tool_parser("hermes"))
        assert streamed == parse_in_pieces(parser, [TEXT[:end]])


def test_without_parsers_text_is_content() -> None:
    parser = AnswerParser()
    assert parser.feed("a<tool") == [ContentDelta("a<tool")]
    assert parser.finish() == []
    assert read_whole(parser, "").content is None


def test_a_format_makes_parsers_for_requests() -> None:
    answer_format = format_of(QWEN3)
    assert answer_format.skips_special_tokens
    answer = read_whole(answer_format.parser(TOOLS, AUTO), TEXT)
    assert answer.reasoning == "I need the time: <tool_call>."
    assert [call.name for call in answer.tool_calls] == ["now"]
    inside = read_whole(answer_format.parser(TOOLS, AUTO, starts_inside=True), "so\n</think>ok")
    assert (inside.reasoning, inside.content) == ("so", "ok")
    for tools, choice in ((TOOLS, ToolChoice("none")), ((), NO_TOOLS)):
        plain = read_whole(answer_format.parser(tools, choice), "<tool_call>")
        assert plain.content == "<tool_call>"


def test_one_call_where_only_one_was_asked_for() -> None:
    answer_format = format_of(QWEN3)
    text = '<tool_call>{"name": "now"}</tool_call>' * 2
    for choice, parallel, num_calls in ((AUTO, True, 2), (AUTO, False, 1), (ToolChoice("named", "now"), True, 1)):
        parser = answer_format.parser(TOOLS, choice, parallel=parallel)
        assert len(read_whole(parser, text).tool_calls) == num_calls
        assert parser.num_tool_calls > 0


def test_marks_that_are_special_tokens_must_be_shown_and_end_tokens_hidden() -> None:
    answer_format = format_of("{{ tools }}[TOOL_CALLS][", {"[TOOL_CALLS]": True, "</think>": True})
    assert not answer_format.skips_special_tokens
    assert answer_format.token_ids == {"[TOOL_CALLS]": FIRST_ADDED_ID}
    text = '[TOOL_CALLS][{"name": "now", "arguments": {}}]</s>'
    answer = read_whole(answer_format.parser(TOOLS, AUTO), text)
    assert (answer.content, len(answer.tool_calls)) == (None, 1)
    grammar = tool_constraint(TOOLS, ToolChoice("required"), answer_format.tools, token_ids=answer_format.token_ids)
    assert grammar is not None
    assert f"start: <[{FIRST_ADDED_ID}]>" in grammar


def test_marks_that_are_plain_tokens_are_seen_anyway() -> None:
    answer_format = format_of(QWEN3, {"<tool_call>": False, "</think>": False})
    assert answer_format.skips_special_tokens
    assert answer_format.hidden == ()
    assert answer_format.token_ids == {"<tool_call>": FIRST_ADDED_ID, "</think>": FIRST_ADDED_ID + 1}


def test_the_template_for_tools_decides() -> None:
    tokenizer = tokenizer_with({}, default="{{ messages }}", tool_use="{{ tools }}[TOOL_CALLS]")
    found = choose_answer_format(tokenizer)
    assert found.tools is TOOL_FORMATS["mistral"]
    assert for_template([{"role": "user", "content": "Hi"}], TOOLS, found.tools, found.chat_template)[1] is not None
    assert choose_answer_format(tokenizer, QWEN3).tools is TOOL_FORMATS["hermes"]


def test_names_override_the_template() -> None:
    none = format_of(QWEN3, tool_call_parser="none", reasoning_parser="none")
    assert none == AnswerFormat(None, None, QWEN3)
    assert read_whole(none.parser(TOOLS, AUTO), TEXT).content == TEXT
    llama = format_of(QWEN3, tool_call_parser="llama3_json", reasoning_parser="none")
    text = json.dumps({"name": "now", "parameters": {}})
    assert len(read_whole(llama.parser(TOOLS, AUTO), text).tool_calls) == 1


def test_neighbouring_pieces_are_joined_but_not_those_of_different_calls() -> None:
    calls = [ToolCallStart(0, "a", "now"), ToolCallStart(1, "b", "now")]
    pieces = [ToolCallArguments(0, "{"), ToolCallArguments(0, "}"), ToolCallArguments(1, "{}")]
    assert merge_events([*calls, *pieces]) == [*calls, ToolCallArguments(0, "{}"), ToolCallArguments(1, "{}")]
    assert merge_events([ContentDelta(""), ReasoningDelta("a"), ReasoningDelta("b")]) == [ReasoningDelta("ab")]
