"""Where in a text its tokens are said to begin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.small_tokenizers import KINDS, small_tokenizer

from quire.core.sampling_params import SamplingParams
from quire.engine.detokenizer import IncrementalDetokenizer
from quire.engine.tokenizer import Tokenizer
from quire.server.logprobs import CompletionLogprobsWriter

IDS = st.lists(st.integers(0, 274), max_size=12)


def unknown(token_ids: Sequence[int]) -> list[None]:
    return [None] * len(token_ids)


def check_begins(
    tokenizer: Tokenizer, token_ids: Sequence[int], offsets: Sequence[int], text: str, hidden: set[int]
) -> None:
    """Whole tokens stand where they are said to; a space that the tokenizer puts before a word may be left out."""
    assert list(offsets) == sorted(offsets)
    for token_id, offset in zip(token_ids, offsets, strict=True):
        token = tokenizer.decode_token(token_id)
        if token_id not in hidden and "\ufffd" not in token:
            assert text.startswith(token, offset) or text.startswith(token.removeprefix(" "), offset), token


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@given(prompt_ids=IDS, token_ids=IDS, echo=st.booleans(), cut=st.integers(0, 12))
def test_tokens_begin_where_they_are_shown(
    kind: str, skips: bool, prompt_ids: list[int], token_ids: list[int], echo: bool, cut: int
) -> None:
    tokenizer = small_tokenizer(kind)
    hidden = set(tokenizer.special_token_ids) if skips else set()
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, SamplingParams(skip_special_tokens=skips))
    detokenizer.append(token_ids)
    detokenizer.finish()
    shown = tokenizer.decode(prompt_ids, skips) if echo else ""
    writer = CompletionLogprobsWriter(tokenizer, 0, prompt_ids, skip_special_tokens=skips)
    if echo:
        writer.echo(unknown(prompt_ids), shown)
    written = [writer.write(part, unknown(part)) for part in (token_ids[:cut], token_ids[cut:])]
    offsets = [offset for part in written for offset in part.text_offset]
    if echo:
        check_begins(tokenizer, prompt_ids, offsets[: len(prompt_ids)], shown, hidden)
    of_sample = [offset - len(shown) for offset in offsets[len(prompt_ids) if echo else 0 :]]
    check_begins(tokenizer, token_ids, of_sample, detokenizer.text, hidden)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("the cat日é<s>/"), min_size=1, max_size=12))
def test_tokens_of_a_text_begin_where_it_has_them(kind: str, text: str) -> None:
    tokenizer = small_tokenizer(kind)
    token_ids = tokenizer.encode(text)
    writer = CompletionLogprobsWriter(tokenizer, 0, token_ids, skip_special_tokens=True)
    writer.echo(unknown(token_ids), text)
    offsets = writer.write([], []).text_offset
    assert offsets[0] == 0
    added = set() if text.startswith("<s>") else {tokenizer.bos_token_id}
    check_begins(tokenizer, token_ids, offsets, text, added - {None})
