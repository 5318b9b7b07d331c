"""What a grammar allows, token by token, against spelling the texts out; and that rows with one stay on their own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from tests.engine.small_tokenizers import byte_level_json, sentencepiece_json, small_tokenizer, tokenizer_files
from tests.sampling.backends import FASTEST

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.tokenizer import Tokenizer
from quire.sampling.grammar import MAX_COMPILED, Grammar, Grammars, RowError
from quire.sampling.grammar_compiler import GrammarCompiler
from quire.sampling.sampler import Sampler, SamplingRow

VOCAB_SIZE = 300
PROMPT = [5, 6, 7]
TEXTS = ["then", "the END", "th", "日本x", "é\n", " the"]

KINDS: dict[str, TokenizerFiles] = {
    "byte-level": tokenizer_files(byte_level_json()),
    "sentencepiece": tokenizer_files(sentencepiece_json(False)),
    "sentencepiece-prefix": tokenizer_files(sentencepiece_json(True)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def choice(texts: Sequence[str]) -> str:
    return llguidance.grammar_from("choice", list(texts))  # type: ignore[arg-type]


def grammars_of(kind: str, vocab_size: int = VOCAB_SIZE) -> Grammars:
    return Grammars(lambda: KINDS[kind], vocab_size)


def allowed(grammar: Grammar, vocab_size: int = VOCAB_SIZE) -> set[int]:
    logits = np.zeros(vocab_size, np.float32)
    grammar.prepare()
    grammar.apply(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def spelled_out(tokenizer: Tokenizer, texts: Sequence[str], written: bytes) -> set[int]:
    """The tokens that lead on from `written` to one of the texts, or that end it."""
    rests = [text.encode()[len(written) :] for text in texts if text.encode().startswith(written)]
    found = {tokenizer.eos_token_id} if b"" in rests else set()
    for token_id in range(VOCAB_SIZE):
        data = tokenizer.token_bytes(token_id)
        if data and token_id not in tokenizer.special_token_ids and any(rest.startswith(data) for rest in rests):
            found.add(token_id)
    return {token_id for token_id in found if token_id is not None}


def test_the_mask_is_what_spelling_out_says_on_every_path(kind: str) -> None:
    tokenizer, grammars = small_tokenizer(kind), grammars_of(kind)
    pending: list[list[int]] = [[]]
    ended = set()
    while pending:
        output = pending.pop()
        found = allowed(grammars.follow(choice(TEXTS), PROMPT + output, len(PROMPT)))
        written = b"".join(tokenizer.token_bytes(token_id) for token_id in output)
        expected = spelled_out(tokenizer, TEXTS, written)
        # Where only one text is left, it is written in the tokenizer's own tokens.
        assert found == expected or (len(found) == 1 and found < expected), (output, written)
        if tokenizer.eos_token_id in found:
            ended.add(written.decode())
        pending += [[*output, token_id] for token_id in found if token_id != tokenizer.eos_token_id]
    assert ended == set(TEXTS)


def test_a_row_that_lived_and_one_rebuilt_from_its_tokens_allow_the_same(kind: str) -> None:
    """Preemption and forks give a new row the old one's tokens."""
    tokenizer, grammars = small_tokenizer(kind), grammars_of(kind)
    living = list(PROMPT)
    lived = grammars.follow(choice(TEXTS), living, len(PROMPT))
    while (found := allowed(lived)) != {tokenizer.eos_token_id}:
        assert allowed(grammars.follow(choice(TEXTS), list(living), len(PROMPT))) == found
        living.append(max(found - {tokenizer.eos_token_id}))
    assert tokenizer.decode(living[len(PROMPT) :]).lstrip() in {text.lstrip() for text in TEXTS}


@pytest.mark.parametrize(
    ("kind", "vocab_size"),
    [("byte-level", 265), ("byte-level", 1000), ("sentencepiece", 275), ("sentencepiece-prefix", 1000)],
)
def test_padding_special_tokens_and_tokens_beyond_the_model_are_never_allowed(kind: str, vocab_size: int) -> None:
    """The model may have more rows than the tokenizer has tokens, and lack some of its added ones."""
    tokenizer = small_tokenizer(kind)
    anything = llguidance.LLMatcher.grammar_from_regex(r"(?s:.)*")
    found = allowed(grammars_of(kind, vocab_size).follow(anything, list(PROMPT), len(PROMPT)), vocab_size)
    assert max(found) < vocab_size
    assert found & (tokenizer.special_token_ids - {tokenizer.eos_token_id}) == set()
    assert all(tokenizer.token_bytes(token_id) for token_id in found)


def test_stop_tokens_wait_for_min_tokens_unless_nothing_else_is_left() -> None:
    tokenizer, grammars = small_tokenizer("byte-level"), grammars_of("byte-level")
    eos = tokenizer.eos_token_id
    assert eos is not None
    living = [*PROMPT, *tokenizer.encode("th", add_special_tokens=False)]
    free = grammars.follow(choice(TEXTS), living, len(PROMPT))
    enough, held = (
        grammars.follow(choice(TEXTS), living, len(PROMPT), min_tokens=min_tokens, stop_token_ids=[eos, 200])
        for min_tokens in (2, 3)
    )
    assert eos in allowed(free)
    assert allowed(enough) == allowed(free)
    assert allowed(held) == allowed(free) - {eos}
    held = grammars.follow(choice(TEXTS), living, len(PROMPT), min_tokens=9, stop_token_ids=[eos, 200])
    living += tokenizer.encode("en", add_special_tokens=False)
    assert allowed(held) == allowed(free) == {eos}


@pytest.mark.parametrize("output", [[200, 201], [263], [290]])
def test_tokens_that_leave_the_grammar_end_the_row(output: list[int]) -> None:
    grammar = grammars_of("byte-level").follow(choice(TEXTS), PROMPT + output, len(PROMPT))
    with pytest.raises(RowError, match="position"):
        allowed(grammar)


@pytest.mark.parametrize("token_id", [200, 265])
def test_why_a_row_ended_is_told_whole(token_id: int) -> None:
    """Also where the token, here `<tool é>`, has the sign that llguidance's own notes begin with."""
    grammar = grammars_of("byte-level").follow(choice(TEXTS), [*PROMPT, token_id], len(PROMPT))
    with pytest.raises(RowError, match=r"doesn't satisfy the grammar") as ended:
        allowed(grammar)
    assert "non-verbose" not in str(ended.value)


def test_a_panic_of_the_compiler_ends_the_row_and_nothing_else() -> None:
    class Panic(BaseException):
        """As pyo3's, which is no Exception."""

    failed: Future[llguidance.LLMatcher] = Future()
    failed.set_exception(Panic())
    with ThreadPoolExecutor(1) as thread, pytest.raises(RowError, match="Panic"):
        allowed(Grammar(thread, failed, list(PROMPT), len(PROMPT), 0, []))


def row(grammars: Grammars, fields: dict[str, Any], output: Sequence[int] = ()) -> SamplingRow:
    wanted = StructuredOutputs(choice=("unused",), compiled_from=choice(TEXTS))
    params = SamplingParams(structured_outputs=wanted, logprobs=3, **fields)
    return SamplingRow(params, 77, [*PROMPT, *output], len(PROMPT), [264], grammars)


FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.2, "top_p": 0.95, "min_tokens": 3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {116: 5.0}, "bad_words_token_ids": [[233]]},
]


@pytest.mark.parametrize("fields", FIELDS, ids=["greedy", "drawn", "nudged"])
def test_a_structured_row_is_bitwise_the_same_beside_any_others(fields: dict[str, Any]) -> None:
    logits = torch.randn(9, VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 3
    grammars, sampler = grammars_of("byte-level"), Sampler(VOCAB_SIZE, FASTEST(VOCAB_SIZE))
    output = small_tokenizer("byte-level").encode("the", add_special_tokens=False)
    alone = sampler.sample(logits[:1].numpy(), [row(grammars_of("byte-level"), fields, output)])
    assert alone[0].error is None
    for place in range(9):
        order = [*range(1, place + 1), 0, *range(place + 1, 9)]
        rows = [row(grammars, FIELDS[i % 3], [200] if i % 4 == 3 else ()) for i in range(8)]
        rows.insert(place, row(grammars, fields, output))
        for each in reversed(rows):
            each.prepare()
        outcomes = sampler.sample(logits[order].numpy(), rows)
        assert outcomes[place] == alone[0]
        failed = [outcome.error is not None for outcome in outcomes[:place] + outcomes[place + 1 :]]
        assert failed == [i % 4 == 3 for i in range(8)]


def test_the_reported_logprobs_are_the_models_own() -> None:
    logits = torch.full((1, VOCAB_SIZE), -1.0)
    logits[0, 200] = 3.0
    outcome = Sampler(VOCAB_SIZE, FASTEST(VOCAB_SIZE)).sample(
        logits.numpy(), [row(grammars_of("byte-level"), {"temperature": 0.0})]
    )[0]
    assert outcome.token_id != 200
    assert outcome.logprobs is not None
    assert outcome.logprobs.token_ids[1] == 200
    assert math.isclose(outcome.logprobs.logprobs[0], float(logits.log_softmax(-1)[0, outcome.token_id]), rel_tol=1e-6)


def test_nothing_left_names_structured_output_among_the_causes() -> None:
    outcome = Sampler(VOCAB_SIZE, FASTEST(VOCAB_SIZE)).sample(
        torch.zeros(1, VOCAB_SIZE).numpy(), [row(grammars_of("byte-level"), {"allowed_token_ids": [200]})]
    )[0]
    assert "structured_outputs" in str(outcome.error)


def test_only_the_grammars_used_last_stay_compiled() -> None:
    grammars = grammars_of("byte-level")
    for index in range(50):
        assert grammars.prepare(choice([f"t{index}"]), 60)
    assert len(grammars._compiled) == MAX_COMPILED == 32
    assert list(grammars._compiled)[-1] == choice(["t49"])
    oldest, second = list(grammars._compiled)[:2]
    assert grammars.prepare(oldest, 60)
    assert grammars.prepare(choice(["another"]), 60)
    assert oldest in grammars._compiled
    assert second not in grammars._compiled


def test_of_long_grammars_fewer_stay_compiled() -> None:
    """32 of 100,000 characters each held a gigabyte."""
    grammars = grammars_of("byte-level")
    long = [choice([f"t{index}"]) + "\n//" + "x" * 400_000 for index in range(4)]
    for grammar in long:
        assert grammars.prepare(grammar, 60)
    assert list(grammars._compiled) == long[2:]
    longest = long[0] + "x" * 2**20
    assert grammars.prepare(longest, 60)
    assert grammars.prepare(longest)


def test_a_grammar_is_prepared_once_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, whole, may_go_on = grammars_of("byte-level"), GrammarCompiler.compile, threading.Event()

    def slow(compiler: GrammarCompiler, grammar: str) -> llguidance.LLMatcher:
        may_go_on.wait(60)
        return whole(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slow)
    assert not grammars.prepare(choice(TEXTS))
    may_go_on.set()
    assert grammars.prepare(choice(TEXTS), 60)


def test_a_mask_that_was_not_prepared_is_that_of_the_tokens_known_now() -> None:
    grammars, living = grammars_of("byte-level"), list(PROMPT)
    grammar = grammars.follow(choice(TEXTS), living, len(PROMPT))
    for text in ("t", "h"):
        living += small_tokenizer("byte-level").encode(text, add_special_tokens=False)
        logits = np.zeros(VOCAB_SIZE, np.float32)
        grammar.apply(logits)
        assert set(np.flatnonzero(logits == 0)) == allowed(grammars.follow(choice(TEXTS), living, len(PROMPT)))


def test_a_grammar_that_could_not_be_compiled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, whole = grammars_of("byte-level"), GrammarCompiler.compile
    monkeypatch.setattr(GrammarCompiler, "compile", lambda *_: 1 // 0)
    assert grammars.prepare(choice(TEXTS), 60), "it is over"
    with pytest.raises(RowError, match="ZeroDivisionError"):
        allowed(grammars.follow(choice(TEXTS), list(PROMPT), len(PROMPT)))
    monkeypatch.setattr(GrammarCompiler, "compile", whole)
    assert allowed(grammars.follow(choice(TEXTS), list(PROMPT), len(PROMPT)))


def test_rows_of_one_grammar_do_not_move_each_other() -> None:
    tokenizer, grammars = small_tokenizer("byte-level"), grammars_of("byte-level")
    first = grammars.follow(choice(TEXTS), [*PROMPT, *tokenizer.encode("th", add_special_tokens=False)], len(PROMPT))
    second = grammars.follow(choice(TEXTS), list(PROMPT), len(PROMPT))
    fresh = allowed(grammars_of("byte-level").follow(choice(TEXTS), list(PROMPT), len(PROMPT)))
    assert allowed(first) != fresh
    assert allowed(second) == fresh
