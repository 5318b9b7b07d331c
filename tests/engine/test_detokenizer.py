"""Streamed text is exactly the final text, never ahead of what is certain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import KINDS, small_tokenizer

from quire.core.sampling_params import SamplingParams
from quire.engine.detokenizer import IncrementalDetokenizer
from quire.engine.tokenizer import Tokenizer

any_ids = st.lists(st.integers(0, 275) | st.integers(-3, 2**63), max_size=40)
WRITING = "the cat 日本 é 👨‍👩‍👧‍👦🏳️‍🌈 x\n\n\t the"


def stream(
    tokenizer: Tokenizer, ids: list[int], *, prompt: list[int] | None = None, **params: Any
) -> tuple[list[str], str | None]:
    """Every delta, the last one after finish, and the stop string."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [], SamplingParams(**params))
    deltas = []
    stop = None
    for token_id in ids:
        stop = detokenizer.append([token_id])
        deltas.append(detokenizer.take_delta())
        assert detokenizer.text == "".join(deltas)
        if stop is not None:
            break
    detokenizer.finish()
    deltas.append(detokenizer.take_delta())
    return deltas, stop


@pytest.mark.parametrize("kind", KINDS)
@given(ids=any_ids, skip=st.booleans())
def test_deltas_concatenate_to_the_decoded_text(kind: str, ids: list[int], skip: bool) -> None:
    tokenizer = small_tokenizer(kind)
    deltas, _ = stream(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(deltas) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("kind", KINDS)
def test_unfinished_characters_are_held_back(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    ids = tokenizer.encode(WRITING, add_special_tokens=False)
    deltas, _ = stream(tokenizer, ids)
    assert "".join(deltas) == WRITING
    assert "\ufffd" not in "".join(deltas)
    cut = ids[: ids.index(tokenizer.encode("👨", add_special_tokens=False)[-1])]
    deltas, _ = stream(tokenizer, cut)
    assert "\ufffd" not in "".join(deltas[:-1])
    assert deltas[-1] == "\ufffd"


@pytest.mark.parametrize("kind", KINDS)
@given(cut=st.integers(0, 80))
def test_the_text_continues_the_prompt(kind: str, cut: int) -> None:
    """Wherever a text is cut into prompt and output, spaces and cut characters come out right."""
    tokenizer = small_tokenizer(kind)
    ids = tokenizer.encode(WRITING)
    prompt, output = ids[:cut], ids[cut:]
    known = tokenizer.decode(prompt).rstrip("\ufffd")
    deltas, _ = stream(tokenizer, output, prompt=prompt)
    assert known + "".join(deltas) == WRITING


@given(
    text=st.text(alphabet="ENDen é", max_size=30),
    stops=st.lists(st.sampled_from(["END", "EN", "DE", "é", "N E", "zzz"]), min_size=1, max_size=3, unique=True),
    include=st.booleans(),
)
def test_stop_strings_cut_the_text_and_no_part_of_one_leaks(text: str, stops: list[str], include: bool) -> None:
    tokenizer = small_tokenizer("byte-level")
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas, stop = stream(tokenizer, ids, stop=tuple(stops), include_stop_str_in_output=include)
    streamed = "".join(deltas)
    ends = [text.find(s) + len(s) for s in stops if s in text]
    if not ends:
        assert (stop, streamed) == (None, text)
        return
    assert stop in stops
    cut = min(ends)
    assert streamed == text[: cut if include else cut - len(stop)]
    assert include or not any(s in streamed for s in stops)


def test_text_that_might_begin_a_stop_string_waits_and_is_released_in_the_end() -> None:
    tokenizer = small_tokenizer("byte-level")
    ids = tokenizer.encode("aENx EN", add_special_tokens=False)
    deltas, stop = stream(tokenizer, ids, stop=("END",))
    assert (deltas, stop) == (["a", "", "ENx", " ", "", "EN"], None)


def test_a_stop_string_in_the_middle_of_one_token() -> None:
    tokenizer = small_tokenizer("sentencepiece")
    ids = tokenizer.encode("x the cat", add_special_tokens=False)
    deltas, stop = stream(tokenizer, ids, stop=("th",))
    assert ("".join(deltas), stop) == ("x ", "th")


def test_nothing_comes_after_a_stop_string_not_even_half_a_character() -> None:
    tokenizer = small_tokenizer("byte-level")
    token_id = tokenizer.encode(" 👨", add_special_tokens=False)[0]
    assert tokenizer.token_bytes(token_id) == b" \xf0\x9f"
    assert stream(tokenizer, [token_id], stop=(" ",)) == (["", ""], " ")


def test_of_the_white_space_a_text_begins_with_one_space_is_the_tokenizers() -> None:
    tokenizer = small_tokenizer("sentencepiece-prefix")
    space, newline, x = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in (" ", "\n", "x"))
    for ids, text in (([space, newline, x], "\nx"), ([newline, x], "\nx"), ([space, space, x], " x"), ([x], "x")):
        assert "".join(stream(tokenizer, ids)[0]) == text


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, ("ab", "END")), (2, ("ab", "END")), (3, ("abENDcd", "END"))])
def test_stop_strings_wait_for_min_tokens(min_tokens: int, expected: tuple[str, str]) -> None:
    tokenizer = small_tokenizer("byte-level")
    ids = tokenizer.encode("abENDcdENDe", add_special_tokens=False)
    assert len(ids) == 7
    deltas, stop = stream(tokenizer, ids, stop=("END",), min_tokens=min_tokens, max_tokens=20)
    assert ("".join(deltas), stop) == expected


def test_many_tokens_at_once_stop_at_the_first_stop_string() -> None:
    tokenizer = small_tokenizer("byte-level")
    detokenizer = IncrementalDetokenizer(tokenizer, [], SamplingParams(stop=("b",)))
    assert detokenizer.append(tokenizer.encode("abcb", add_special_tokens=False)) == "b"
    assert detokenizer.append(tokenizer.encode("more")) == "b"
    detokenizer.finish()
    assert detokenizer.text == "a"


def test_each_token_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the text grows, a token costs the same."""
    tokenizer = small_tokenizer("byte-level")
    decoded: list[int] = []
    token_bytes = tokenizer.token_bytes

    def counted(token_id: int) -> bytes:
        decoded.append(token_id)
        return token_bytes(token_id)

    monkeypatch.setattr(tokenizer, "token_bytes", counted)
    ids = [0xE2, 0x82] * 500
    stream(tokenizer, ids)
    assert decoded == ids
