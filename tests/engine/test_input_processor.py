"""Requests are made on several threads at once, and of texts of any length."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.small_tokenizers import KINDS, byte_level_json, small_tokenizer, tokenizer_files

from quire import BeamSearchParams, SamplingParams
from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import ModelConfig, PoolingConfig
from quire.core.embedding import PoolingParams
from quire.core.structured_outputs import StructuredOutputs
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
    request = inputs.process([1, 2, 3], SamplingParams(max_tokens=1), beam_search=search)
    assert (request.max_num_tokens, request.beam_search) == (12, search)
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


def test_the_vocabulary_begins_with_0_and_ends_before_its_size(smollm2_config: ModelConfig) -> None:
    inputs, size = inputs_of(smollm2_config), smollm2_config.vocab_size
    assert inputs.process([0, size - 1], SamplingParams()).prompt_token_ids == [0, size - 1]
    assert inputs.process(list(np.array([0, size - 1])), SamplingParams()).prompt_token_ids == [0, size - 1]
    for ids in ([size], [0, -1], [0, True]):
        with pytest.raises(InvalidRequestError, match=f"from 0 to {size - 1}, the model's vocabulary"):
            inputs.process(ids, SamplingParams())


def test_a_long_text_is_judged_by_its_beginning_if_that_has_twice_what_fits(
    smollm2_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_any_length = Tokenizer(tokenizer_files(byte_level_json() | {"normalizer": {"type": "NFC"}}))
    inputs, lengths, num_tokens = InputProcessor(of_any_length, smollm2_config, 64, 0), list[int](), 129
    encode = Tokenizer.encode

    def as_many_as_asked(self: Tokenizer, text: str, *args: bool) -> list[int]:
        lengths.append(len(text))
        return [1] * num_tokens if len(text) == 16 * 64 else encode(self, text, *args)

    monkeypatch.setattr(Tokenizer, "encode", as_many_as_asked)
    inputs.check_could_fit("a" * 2 * 16 * 64)
    assert not lengths
    with pytest.raises(InvalidRequestError, match="of its 2049 characters alone are 129 tokens"):
        inputs.check_could_fit("a" * (2 * 16 * 64 + 1))
    num_tokens = 128
    inputs.check_could_fit("a" * (2 * 16 * 64 + 1))


def test_what_was_started_for_grammars_ends_and_may_start_again(
    smollm2_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, may_end, closed = inputs_of(smollm2_config), threading.Event(), list[bool]()
    monkeypatch.setattr(inputs._grammar_check, "close", lambda: closed.append(True))
    compiling = inputs.compiling
    running, waiting = compiling.submit(may_end.wait, 60), compiling.submit(int)
    inputs.close()
    assert (closed, waiting.cancelled(), running.done()) == ([True], True, False)
    may_end.set()
    assert inputs.compiling.submit(int).result(60) == 0
    inputs.close()


def test_only_a_grammar_that_is_not_known_is_waited_for(
    smollm2_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, known = inputs_of(smollm2_config), [False]
    monkeypatch.setattr(inputs._grammar_check, "known", lambda _: known[0])
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=("a",)))
    assert not inputs.must_compile(SamplingParams())
    assert inputs.must_compile(params)
    known[0] = True
    assert not inputs.must_compile(params)


def test_what_comes_with_a_text_is_in_its_request(smollm2_config: ModelConfig) -> None:
    pooling = PoolingConfig(kind="mean_tokens", normalize=True, max_tokens=64)
    config = dataclasses.replace(smollm2_config, pooling=pooling)
    inputs, before = inputs_of(config), time.monotonic()
    params = PoolingParams(dimensions=config.hidden_size)
    request = inputs.process_embedding([1, 2], params, request_id="mine", priority=-3, tenant="someone")
    assert (request.request_id, request.prompt, request.prompt_token_ids) == ("mine", None, [1, 2])
    assert (request.priority, request.tenant, request.pooling_params) == (-3, "someone", params)
    assert before <= request.arrival_time <= time.monotonic()
    assert inputs.process_embedding([1], PoolingParams()).request_id == "0"
    assert len(inputs.process_embedding([1] * 64, PoolingParams()).prompt_token_ids) == 64
    with pytest.raises(InvalidRequestError, match="priority"):
        inputs.process_embedding([1], PoolingParams(), priority=True)
    with pytest.raises(InvalidRequestError, match="makes embeddings and nothing else"):
        inputs.process([1], SamplingParams())
    with pytest.raises(InvalidRequestError, match="generates text and nothing else"):
        inputs_of(smollm2_config).process_embedding([1], PoolingParams())
