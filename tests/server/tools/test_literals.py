"""JSON and Python literals become JSON."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.server.text_reader import MalformedTextError
from quire.server.tools.literals import MAX_NUMBER_CHARS, to_json


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a": [1, 2.5, -3e-2, true, false, null]}', {"a": [1, 2.5, -0.03, True, False, None]}),
        ("{'a': (True, False, None, .5, +1, 1_000, 5.)}", {"a": [True, False, None, 0.5, 1, 1000, 5.0]}),
        ('["\\u00e9\\n\\/", "\\ud83d\\ude00"]', ["é\n/", "😀"]),
        ('["line\nline\ttab\x00"]', ["line\nline\ttab\x00"]),
        (r"""['\x41\U0001F600\'"', "\d+\.", "\u12"]""", ["A😀'\"", r"\d+\.", r"\u12"]),
        ("[1, [2, ], {'a': 3, }, ]", [1, [2], {"a": 3}]),
        (" [ ] ", []),
        ("{}", {}),
        (f"[{'9' * 300}]", [int("9" * 300)]),
        ('["\\ud83d", "\ud83d", "\\\ude00"]', ["\ud83d", "\ud83d", "\\\ude00"]),
    ],
)
def test_values(written: str, value: Any) -> None:
    json_text = to_json(written)
    assert json.loads(json_text) == value
    assert json_text.encode().decode() == json_text


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "[",
            '{"a"',
            '["a',
            "[1",
            "{1: 2}",
            "{a: 1}",
            "[,]",
            "[1,,2]",
            "[1 2]",
            "{,}",
            '{"a" 1}',
            '{"a": }',
            "[)",
        ),
        *("[1+1]", "[NaN]", "[inf]", "[0x10]", "[1j]", "[x]", "[f()]", '[f"x"]', '["a" "b"]', "[...]", "[] 1"),
        f"[{'9' * (MAX_NUMBER_CHARS + 1)}]",
    ],
)
def test_what_is_no_literal(written: str) -> None:
    with pytest.raises(MalformedTextError):
        to_json(written)


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from("[]{},:\"'\\ux0041n\n .-+e_TrueNonfalsé"), max_size=14).map(lambda text: f"[{text}]"))
@example("['\\x4']")
def test_what_comes_out_is_json_and_never_wrong(written: str) -> None:
    """Where Python or JSON can read the text, the value is the same."""
    try:
        value = json.loads(to_json(written))
    except MalformedTextError:
        return
    for read in (json.loads, ast.literal_eval):
        try:
            expected = read(written)
        except (ValueError, SyntaxError, TypeError):
            continue
        assert value == json.loads(json.dumps(expected))
        return
