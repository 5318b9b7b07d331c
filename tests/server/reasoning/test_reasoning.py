"""Reasoning is told from the answer, wherever the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.tools.samples import parse_in_pieces, read_whole

from quire.errors import InvalidRequestError
from quire.server.answer_events import ReasoningDelta
from quire.server.answer_parser import AnswerParser
from quire.server.reasoning.parser import ReasoningParser
from quire.server.reasoning.registry import REASONING_STYLES, choose_reasoning_style, prompt_opens_reasoning

STYLE = REASONING_STYLES["think"]

SAMPLES = [
    ("<think>\nOne.\n\nTwo.\n</think>\n\nThree.", False, "One.\n\nTwo.", "Three."),
    ("One.\n</think>\n\nThree.", True, "One.", "Three."),
    ("<think>One.</think>Three.", True, "One.", "Three."),
    ("\n<think></think>    indented", False, None, "    indented"),
    ("<think>\n\n</think>\n\nThree.", False, None, "Three."),
    ("<think>a < b </thin </think>c", False, "a < b </thin", "c"),
    ("<think>never ends </thi", False, "never ends </thi", None),
    ("<think>", False, None, None),
    ("<thi", False, None, "<thi"),
    (" No <think>thought</think>.", False, None, " No <think>thought</think>."),
    ("<think>a</think>b</think>c<think>", False, "a", "b</think>c<think>"),
    ("", True, None, None),
]


@pytest.mark.parametrize(("text", "starts_inside", "reasoning", "content"), SAMPLES)
def test_samples_cut_anywhere(text: str, starts_inside: bool, reasoning: str | None, content: str | None) -> None:
    def parser() -> AnswerParser:
        return AnswerParser(ReasoningParser(STYLE, starts_inside=starts_inside))

    answer = read_whole(parser(), text)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    whole = parse_in_pieces(parser(), [text])
    assert parse_in_pieces(parser(), text) == whole
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert parse_in_pieces(parser(), [text[:first], text[first:second], text[second:]]) == whole


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "\n", " ", "a", "</"]), max_size=12),
    st.booleans(),
)
def test_anything_streams_like_the_whole(pieces: list[str], starts_inside: bool) -> None:
    text = "".join(pieces)
    results = [
        parse_in_pieces(ReasoningParser(STYLE, starts_inside=starts_inside), cut) for cut in (pieces, [text], text)
    ]
    assert results[0] == results[1] == results[2]


def test_reasoning_streams_while_it_arrives() -> None:
    parser = ReasoningParser(STYLE)
    assert parser.feed("<think>\nHm") == [ReasoningDelta("Hm")]
    assert parser.feed(", so") == [ReasoningDelta(", so")]


def test_detection() -> None:
    assert choose_reasoning_style("auto", "{{ content.split('</think>')[-1] }}") is STYLE
    assert choose_reasoning_style("auto", "<|END_THINKING|>") is REASONING_STYLES["command_a"]
    assert choose_reasoning_style("auto", "{{ messages }}") is None
    assert choose_reasoning_style("auto", None) is None
    assert choose_reasoning_style("none", "</think>") is None
    assert choose_reasoning_style("seed", "</think>") is REASONING_STYLES["seed"]
    with pytest.raises(InvalidRequestError, match="magistral"):
        choose_reasoning_style("thinking", None)


def test_the_prompt_shows_whether_the_answer_begins_inside() -> None:
    assert prompt_opens_reasoning(STYLE, "<|Assistant|><think>\n")
    assert not prompt_opens_reasoning(STYLE, "say <think>!<|Assistant|>")
    assert not prompt_opens_reasoning(STYLE, "<|im_start|>assistant\n<think>\n\n</think>\n\n")  # thinking turned off


@pytest.mark.parametrize(
    ("continued", "inside"),
    [("<think>\nThe user asks", True), ("<think>a</think>b", False), ("no", False), ("a</think>b<think>c", True)],
)
def test_a_message_that_is_continued_may_have_opened_it(continued: str, inside: bool) -> None:
    assert prompt_opens_reasoning(STYLE, f"say <think>!<|Assistant|>{continued}", continued) is inside
