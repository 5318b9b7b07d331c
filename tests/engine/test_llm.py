"""The offline face on a small model: prompt forms, samples, stops, caching, beams, and that nothing leaks."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import save_tiny_llama
from transformers import AutoModelForCausalLM

from quire import LLM, BeamSearchParams, SamplingParams
from quire.config import OFFLINE_BATCHED_TOKENS, EngineConfig
from quire.core.native import has_native_module
from quire.errors import InvalidRequestError
from quire.models.decoder import Decoder

PROMPT = list(range(40, 90))


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), dtype="float32", num_threads=1, num_blocks=200, seed=0) as llm:
        yield llm


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "llm" in request.fixturenames:
        scheduler = request.getfixturevalue("llm")._engine.client.engine.scheduler
        assert not scheduler.has_unfinished
        assert scheduler.kv.pool.num_held == 0


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **fields})  # type: ignore[arg-type]


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_a_checkpoint_of_float16_answers_natively_as_in_float32(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16).save_pretrained(tmp_path)
    found = {}
    for dtype in ("auto", "float32"):
        with LLM(str(tmp_path), backend="cpu", dtype=dtype, num_threads=1, num_blocks=50) as llm:  # type: ignore[arg-type]
            assert llm.info.dtype == ("bfloat16" if dtype == "auto" else dtype)
            (output,) = llm.generate([PROMPT], greedy(max_tokens=1, prompt_logprobs=0), use_tqdm=False)  # type: ignore[arg-type]
        entries = zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
        found[dtype] = torch.tensor([logprobs[token].logprob for token, logprobs in entries])
    off = (found["auto"] - found["float32"]).abs()
    assert found["float32"].std() > 1
    assert 0 < off.mean() < 0.1
    assert off.max() < 0.5


def test_prompt_forms_agree(llm: LLM) -> None:
    text = "hello"
    ids = llm.get_tokenizer().encode(text)
    forms = [text, ids, {"prompt": text}, {"prompt_token_ids": ids}]
    answers = [llm.generate(form, greedy(), use_tqdm=False)[0].outputs[0].token_ids for form in forms]  # type: ignore[arg-type]
    assert answers == [answers[0]] * 4
    together = llm.generate(forms, greedy(), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in together] == answers


def test_steps_are_longer_than_a_servers_unless_told(llm: LLM, tiny_llama: Path) -> None:
    assert llm.info.max_num_batched_tokens == OFFLINE_BATCHED_TOKENS > EngineConfig().max_num_batched_tokens
    with LLM(str(tiny_llama), num_threads=1, num_blocks=200, max_num_batched_tokens=48) as own:
        assert own.info.max_num_batched_tokens == 48


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    outputs = llm.generate([[65, 66], PROMPT, [67]], [greedy(max_tokens=k) for k in (9, 1, 4)], use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [[65, 66], PROMPT, [67]]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 4]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)


def test_greedy_equals_transformers(llm: LLM, tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(PROMPT) :].tolist()
    assert llm.generate(PROMPT, greedy(max_tokens=30), use_tqdm=False)[0].outputs[0].token_ids == expected


def test_cached_prefix_is_reported(llm: LLM) -> None:
    llm.reset_prefix_cache()
    first, second = (llm.generate(PROMPT, greedy(), use_tqdm=False)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    salted = llm.generate(PROMPT, greedy(), use_tqdm=False, cache_salt="tenant")[0]
    assert salted.num_cached_tokens == 0
    assert llm.reset_prefix_cache()
    assert llm.generate(PROMPT, greedy(), use_tqdm=False)[0].num_cached_tokens == 0


def test_max_tokens_none_fills_the_context(llm: LLM) -> None:
    output = llm.generate(PROMPT, greedy(max_tokens=None), use_tqdm=False)[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.info.max_model_len


def test_stop_token_and_stop_string(llm: LLM) -> None:
    full = llm.generate(PROMPT, greedy(max_tokens=40), use_tqdm=False)[0].outputs[0]
    stop_id = full.token_ids[5]
    stopped = llm.generate(PROMPT, greedy(max_tokens=40, stop_token_ids=(stop_id,)), use_tqdm=False)[0].outputs[0]
    assert stopped.token_ids == full.token_ids[: full.token_ids.index(stop_id) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop_id)

    stop = full.text[10:13]
    found = llm.generate(PROMPT, greedy(max_tokens=40, stop=stop), use_tqdm=False)[0]
    metrics, cut = found.metrics, found.outputs[0]
    assert metrics is not None
    assert metrics.finished_time is not None
    assert metrics.finished_time >= metrics.arrival_time
    assert cut.text == full.text[: full.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    kept = llm.generate(PROMPT, greedy(max_tokens=40, stop=stop, include_stop_str_in_output=True), use_tqdm=False)[
        0
    ].outputs[0]
    assert kept.text == full.text[: full.text.index(stop) + len(stop)]


def test_logprobs_are_those_of_transformers(llm: LLM, tiny_llama: Path) -> None:
    output = llm.generate(PROMPT, greedy(logprobs=4, prompt_logprobs=1), use_tqdm=False)[0]
    sample = output.outputs[0]
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + sample.token_ids])).logits[0].double()
    expected = torch.log_softmax(logits, -1)
    assert sample.logprobs is not None
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for i, (token_id, at_position) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        row = expected[len(PROMPT) + i - 1]
        assert at_position[token_id].rank == 1
        assert len(at_position) == 4
        for other, entry in at_position.items():
            assert entry.logprob == pytest.approx(row[other].item(), abs=1e-4)
    for i, position in enumerate(output.prompt_logprobs[1:], start=1):
        assert position is not None
        assert position[PROMPT[i]].logprob == pytest.approx(expected[i - 1, PROMPT[i]].item(), abs=1e-4)
        assert position[PROMPT[i]].rank == 1 + int((expected[i - 1] > expected[i - 1, PROMPT[i]]).sum())
    assert sample.cumulative_logprob == pytest.approx(
        sum(at_position[t].logprob for t, at_position in zip(sample.token_ids, sample.logprobs, strict=True))
    )


def test_n_samples(llm: LLM) -> None:
    params = SamplingParams(n=5, temperature=1.0, max_tokens=10, seed=3, ignore_eos=True)
    first, second = (llm.generate(PROMPT, params, use_tqdm=False)[0] for _ in range(2))
    assert [sample.index for sample in first.outputs] == list(range(5))
    assert [s.token_ids for s in first.outputs] == [s.token_ids for s in second.outputs]
    assert len({tuple(s.token_ids) for s in first.outputs}) == 5


@pytest.mark.parametrize("max_tokens", [1, 2])
@pytest.mark.parametrize("length", [1, 16, 17, 33])
def test_n_samples_that_end_at_once(llm: LLM, length: int, max_tokens: int) -> None:
    params = SamplingParams(n=3, temperature=1.0, max_tokens=max_tokens, seed=1, ignore_eos=True)
    output = llm.generate(PROMPT[:length], params, use_tqdm=False)[0]
    assert [len(sample.token_ids) for sample in output.outputs] == [max_tokens] * 3


def brute_force_beams(path: Path, prompt: list[int], width: int, max_tokens: int, eos: int | None) -> list[list[int]]:
    """Beam search written as plainly as possible, recomputing everything."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    live, done = [([], 0.0)], []  # type: ignore[var-annotated]
    for _ in range(max_tokens):
        grown = []
        for output, score in live:
            with torch.inference_mode():
                row = torch.log_softmax(model(torch.tensor([prompt + output])).logits[0, -1].double(), -1)
            best = row.topk(2 * width).indices.tolist()
            grown += [([*output, token], score + row[token].item()) for token in best]
        grown.sort(key=lambda item: item[1] / len(item[0]), reverse=True)
        done += [(o, s, max(len(o) - 1, 1)) for o, s in grown if o[-1] == eos]
        live = [(o, s) for o, s in grown if o[-1] != eos][:width]
    done += [(o, s, len(o)) for o, s in live]
    done.sort(key=lambda item: item[1] / item[2], reverse=True)
    return [output for output, _, _ in done[:width]]


@pytest.mark.parametrize("width", [1, 3, 4])
def test_beam_search_equals_the_plain_algorithm(llm: LLM, tiny_llama: Path, width: int) -> None:
    found = llm.beam_search(PROMPT, BeamSearchParams(beam_width=width, max_tokens=6, ignore_eos=True))[0]
    expected = brute_force_beams(tiny_llama, PROMPT, width, 6, None)
    assert [sequence.tokens[len(PROMPT) :] for sequence in found.sequences] == expected
    scores = [sequence.cum_logprob for sequence in found.sequences]
    assert scores == sorted(scores, reverse=True)


def test_a_beam_search_without_numbers_is_an_error_of_its_own_prompt(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 a real model may overflow; here one prompt does."""
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    with LLM(str(tiny_llama), backend="reference", dtype="float32", num_threads=1, num_blocks=100) as llm:
        expected = llm.beam_search(PROMPT, params)
        engine = llm._engine.client.engine
        forward = Decoder.forward

        def overflow(model: Decoder, batch: Any, *args: Any) -> Any:
            """[R, D], each row's last token."""
            hidden = forward(model, batch, *args)
            ends = torch.tensor(batch.query_starts[1:]) - 1
            hidden[batch.token_ids[ends] == 7] = float("inf")
            return hidden

        monkeypatch.setattr(Decoder, "forward", overflow)
        assert 7 not in PROMPT
        bad, good = llm.beam_search([[7], PROMPT], params)
        assert bad.sequences == []
        assert "not finite" in str(bad.error)
        assert [good] == expected
        assert engine.scheduler.kv.pool.num_held == 0


def test_beam_search_many_prompts_share_the_engine_with_none_lost(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True)
    together = llm.beam_search([PROMPT, PROMPT[:7], [65]], params)
    single = [llm.beam_search(prompt, params)[0] for prompt in (PROMPT, PROMPT[:7], [65])]
    assert [[s.tokens for s in output.sequences] for output in together] == [
        [s.tokens for s in output.sequences] for output in single
    ]


@pytest.mark.parametrize("where", ["plan", "submit", "collect", "commit"])
def test_ctrl_c_leaves_the_engine_usable(llm: LLM, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes: the step is finished first, then the requests are gone."""
    expected = llm.generate(PROMPT, greedy(), use_tqdm=False)[0].outputs[0].token_ids
    engine = llm._engine.client.engine
    owner = engine.steps.executor if where in ("submit", "collect") else engine.scheduler
    method, num_calls = getattr(owner, where), 0

    def interrupted(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            signal.raise_signal(signal.SIGINT)
        result = method(*args)
        if num_calls == 3:
            num_steps.append(engine.steps.num_steps)
        return result

    num_steps: list[int] = []
    monkeypatch.setattr(owner, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT] * 8, greedy(max_tokens=400), use_tqdm=False)
    assert num_steps, "the call that was interrupted came to its end"
    assert engine.steps.num_steps <= num_steps[0] + 1
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.generate(PROMPT, greedy(), use_tqdm=False)[0].outputs[0].token_ids == expected


def test_a_second_ctrl_c_does_not_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one waited too")

    monkeypatch.setattr(llm._engine.client.engine.steps.executor, "collect", stuck)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPT, greedy(), use_tqdm=False)


def test_chat_uses_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    one = llm.chat(messages, greedy(), use_tqdm=False)
    many = llm.chat([messages, messages], greedy(), use_tqdm=False)
    assert one[0].prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert [output.outputs[0].token_ids for output in many] == [one[0].outputs[0].token_ids] * 2


def test_probability_of_nothing_is_minus_infinity_not_nan(llm: LLM) -> None:
    output = llm.generate(PROMPT, greedy(logprobs=-1, max_tokens=1), use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    assert len(output.logprobs[0]) == 320
    assert not any(math.isnan(entry.logprob) for entry in output.logprobs[0].values())


def test_ctrl_c_counts_when_the_step_fails_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise InvalidRequestError("no")

    monkeypatch.setattr(llm._engine.client.engine.scheduler, "plan", fail)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        llm.generate(PROMPT, greedy(), use_tqdm=False)
    assert isinstance(interrupted.value.__context__, InvalidRequestError)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_of_half_a_character(llm: LLM, include: bool) -> None:
    """What is left of a character in the end becomes U+FFFD, which a stop string may have."""
    lead = next(token_id for token_id in range(256) if llm.get_tokenizer().token_bytes(token_id) == b"\xe2")
    params = greedy(max_tokens=1, allowed_token_ids=[lead], stop="\ufffd", include_stop_str_in_output=include)
    sample = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", "\ufffd")
    assert sample.text == ("\ufffd" if include else "")
