"""Requests are made on several threads at once, and of texts of any length."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.small_tokenizers import KINDS, byte_level_json, small_tokenizer, tokenizer_files

from quire import BeamSearchParams, SamplingParams
from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.engine.input_processor import InputProcessor
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

PER_THREAD = 2000


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_every_request_gets_an_id_of_its_own(tiny_llama: Path, eager_switching: None) -> None:
    config = open_checkpoint(str(tiny_llama)).config
    inputs = InputProcessor(small_tokenizer("byte-level"), config, 64, 0, id_prefix="w-")

    def make(_: int) -> list[str]:
        return [inputs.process([1], SamplingParams()).request_id for _ in range(PER_THREAD)]

    with ThreadPoolExecutor(4) as pool:
        ids = [request_id for some in pool.map(make, range(4)) for request_id in some]
    assert set(ids) == {f"w-{number}" for number in range(4 * PER_THREAD)}


PIECES = ("the", " the", "END", "<s>", "<tool é>", "\U0001f600", "é", "a", "  ", "</s>")


@pytest.mark.parametrize("kind", KINDS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30))
def test_a_text_refused_for_its_length_alone_has_too_many_tokens(kind: str, pieces: list[str]) -> None:
    tokenizer, text = small_tokenizer(kind), "".join(pieces)
    longest = tokenizer.max_token_bytes
    assert (longest is not None) is (kind == "byte-level")
    if longest is not None:
        assert len(text.encode()) <= longest * len(tokenizer.encode(text))


def test_tokenizers_that_drop_or_change_text_set_no_limit() -> None:
    for change in (
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"added_tokens": [{**byte_level_json()["added_tokens"][0], "lstrip": True}]},
    ):
        changed = byte_level_json() | change
        assert Tokenizer(tokenizer_files(changed)).max_token_bytes is None, change


def test_a_text_that_cannot_fit_is_refused_unread(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer("byte-level")
    inputs = InputProcessor(tokenizer, open_checkpoint(str(tiny_llama)).config, 64, 0)
    assert tokenizer.max_token_bytes == len("<tool é>".encode()) == 9
    with pytest.raises(InvalidRequestError, match="has 576 tokens, but at most 63 fit"):
        inputs.process("a" * 575, SamplingParams())
    monkeypatch.setattr(Tokenizer, "encode", None)
    with pytest.raises(
        InvalidRequestError,
        match="is 64 tokens of at most 9 bytes, and the prompt is too long: it has 577 characters, but at most 576 could fit",
    ):
        inputs.process("a" * 577, SamplingParams())


def test_words_are_tokenized_once_for_all_prompts_of_a_request(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer("byte-level")
    inputs = InputProcessor(tokenizer, open_checkpoint(str(tiny_llama)).config, 64, 0)
    asked: list[list[str]] = []
    encode_plain = tokenizer.encode_plain
    monkeypatch.setattr(tokenizer, "encode_plain", lambda texts: asked.append(texts) or encode_plain(texts))
    params = SamplingParams(bad_words=["a", " b", "a"])
    made = [inputs.process([1], params).sampling_params.bad_words_token_ids for _ in range(3)]
    assert asked == [["a", " a", "b", " b", "a", " a"]]
    assert made == [tuple(tuple(tokenizer.encode(text, False)) for text in ("a", " a", "b", " b"))] * 3


def test_banned_ids_of_the_request_stand_beside_its_words(tiny_llama: Path) -> None:
    tokenizer = small_tokenizer("byte-level")
    inputs = InputProcessor(tokenizer, open_checkpoint(str(tiny_llama)).config, 64, 0)
    (a,), (space, same) = tokenizer.encode("a", False), tokenizer.encode(" a", False)
    params = SamplingParams(bad_words=["a"], bad_words_token_ids=[[5, 6], [a]])
    assert inputs.process([1], params).sampling_params.bad_words_token_ids == ((5, 6), (a,), (space, same))


def inputs_of(config: ModelConfig, seed: int | None = 0) -> InputProcessor:
    return InputProcessor(small_tokenizer("byte-level"), config, 64, seed)


def test_prompt_and_output_fit_the_context(smollm2_config: ModelConfig) -> None:
    inputs = inputs_of(smollm2_config)
    for max_tokens, together in ((None, 64), (10, 13), (61, 64), (100, 64)):
        assert inputs.process([1, 2, 3], SamplingParams(max_tokens=max_tokens)).max_num_tokens == together
    search = BeamSearchParams(beam_width=2, max_tokens=9)
    assert inputs.process([1, 2, 3], SamplingParams(max_tokens=1), beam_search=search).max_num_tokens == 12
    inputs.process([1, 2, 3], SamplingParams(max_tokens=None, min_tokens=61))
    with pytest.raises(InvalidRequestError, match="only 61 fit"):
        inputs.process([1, 2, 3], SamplingParams(max_tokens=None, min_tokens=62))


def test_seeds_are_the_requests_or_follow_from_the_engines(smollm2_config: ModelConfig) -> None:
    def seeds(of_engine: int | None) -> list[int]:
        inputs = inputs_of(smollm2_config, of_engine)
        return [inputs.process([1], SamplingParams()).seed for _ in range(3)]

    assert seeds(5) == seeds(5)
    assert len({*seeds(5), *seeds(6), *seeds(None), *seeds(None)}) == 12
    for own, resolved in ((7, 7), (0, 0), (-2, 2**64 - 2), (2**64 - 1, 2**64 - 1)):
        for of_engine in (5, None):
            assert inputs_of(smollm2_config, of_engine).process([1], SamplingParams(seed=own)).seed == resolved


def test_what_comes_with_a_prompt_is_in_its_request(smollm2_config: ModelConfig) -> None:
    request = inputs_of(smollm2_config).process(
        {"prompt": "for the record", "prompt_token_ids": [1, 2]},
        SamplingParams(),
        request_id="mine",
        priority=-3,
        cache_salt="salt",
        tenant="someone",
    )
    assert (request.request_id, request.prompt, request.prompt_token_ids) == ("mine", "for the record", [1, 2])
    assert (request.priority, request.cache_salt, request.tenant) == (-3, "salt", "someone")
    assert request.eos_token_ids == [264]
