"""Bad input gets one clear sentence, and nothing is lost: the engine lives and no block leaks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.engine.tokenizer import Tokenizer
from quire.errors import ChatTemplateError, InvalidRequestError, ModelNotFoundError, PromptTooLongError

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), dtype="float32", num_threads=1, max_model_len=64, num_blocks=20) as llm:
        yield llm


def refuse(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> str:
    """The prompt is refused, its good neighbour is not started, and the engine answers afterwards as before."""
    good = [65, 66, 67]
    before = llm.generate(good, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    with pytest.raises(InvalidRequestError) as refusal:
        llm.generate([good, prompt], [GREEDY, params], use_tqdm=False)
    scheduler = llm._engine.client.engine.scheduler
    assert not llm._engine.client.has_unfinished
    assert scheduler.kv.pool.num_held == 0
    assert llm.generate(good, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == before
    return str(refusal.value)


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {"prompt_token_ids": []}])
def test_empty_prompt(llm: LLM, prompt: Any) -> None:
    assert "no tokens" in refuse(llm, prompt)


def test_prompt_as_long_as_the_context(llm: LLM) -> None:
    message = refuse(llm, [65] * 64)
    assert "64 tokens" in message
    assert "at most 63" in message
    assert "max_model_len" in message
    assert len(llm.generate([65] * 63, GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 1


@pytest.mark.parametrize("bad", [-1, 320, 2**31, 2**63, True, 1.5, "a", None])
def test_token_ids_out_of_range(llm: LLM, bad: Any) -> None:
    message = refuse(llm, {"prompt_token_ids": [65, bad]})
    assert repr(bad) in message
    assert "319" in message


@pytest.mark.parametrize("prompt", [3, None, {"text": "x"}, {"prompt": 5}, b"bytes"])
def test_prompts_of_no_known_form(llm: LLM, prompt: Any) -> None:
    assert "prompt" in refuse(llm, prompt)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"prompt": 5}, "'prompt' in a prompt dict is text, got int."),
        ({"prompt": 5, "prompt_token_ids": [65]}, "'prompt' in a prompt dict is text, got int."),
        ({"prompt_token_ids": "x"}, "'prompt_token_ids' in a prompt dict is a list of token ids, got str."),
        ({"prompt_token_ids": [65, -1]}, "Token id -1 at position 1 of prompt"),
        ({"prompt": "a", "cache_salt": "mine"}, "not cache_salt; leave that out"),
        ({"prompt": "a", "multi_modal_data": {"image": b""}}, "not multi_modal_data; leave that out"),
    ],
)
def test_a_prompt_dict_is_taken_whole_or_refused(llm: LLM, prompt: Any, said: str) -> None:
    assert said in refuse(llm, prompt)


def test_of_several_prompts_the_bad_one_is_named(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match=r"^prompts\[1\]: This model's maximum") as refusal:
        llm.generate([[65], [65] * 64], GREEDY, use_tqdm=False)
    assert refusal.value.field == "prompt"
    with pytest.raises(InvalidRequestError, match=r"^The prompt has no tokens"):
        llm.generate("", GREEDY, use_tqdm=False)


def test_a_key_of_a_prompt_dict_may_be_there_and_none(llm: LLM) -> None:
    prompt = {"prompt": None, "prompt_token_ids": [65], "multi_modal_data": None}
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids == [65]


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
def test_sampling_token_ids_beyond_the_vocabulary(llm: LLM, field: str) -> None:
    assert "320" in refuse(llm, [65], SamplingParams(**{field: [320]}))
    assert "320" in refuse(llm, [65], SamplingParams(logit_bias={320: 1.0}))


def test_more_min_tokens_than_the_context_holds(llm: LLM) -> None:
    assert "min_tokens" in refuse(llm, [65] * 10, SamplingParams(min_tokens=60, max_tokens=None))


def test_a_request_that_can_never_fit_is_refused_at_once(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), num_threads=1, max_model_len=256, num_blocks=5) as llm:
        message = refuse(llm, [65] * 70)
    assert "num_blocks" in message


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="1 sampling_params for 2 prompts"):
        llm.generate([[65], [66]], [GREEDY], use_tqdm=False)


def test_templates_that_fail(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for template in (
        "{{ raise_exception('no') }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for x in range(10**9) %}a{% endfor %}",
    ):
        with pytest.raises(ChatTemplateError):
            llm.chat(messages, GREEDY, chat_template=template, use_tqdm=False)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("chat_template", 5, "chat_template must be text, got 5."),
        ("tools", 5, "tools must be a list of dicts, got 5."),
        ("tools", {"type": "function"}, "tools must be a list of dicts, got {'type': 'function'}."),
        ("tools", ["get_time"], "tools must be a list of dicts, got 'get_time'."),
        ("chat_template_kwargs", 5, "chat_template_kwargs must be a dict, got 5."),
    ],
)
def test_what_is_given_with_a_conversation(llm: LLM, field: str, value: Any, said: str) -> None:
    options: dict[str, Any] = {"chat_template": "{{ messages[0].content }}", field: value}
    with pytest.raises(InvalidRequestError) as refusal:
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False, **options)
    assert str(refusal.value) == said
    assert refusal.value.field == field


def test_unknown_model() -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2"):
        LLM("no-such-model")


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_size", 0), ("memory_utilization", 0.0), ("dtype", "float8"), ("max_num_seqs", True), ("num_blocks", 1)],
)
def test_engine_config_rules(tiny_llama: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        LLM(str(tiny_llama), **{field: value})


def test_a_text_of_megabytes_is_refused_by_its_beginning(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is known of the tokenizer."""
    monkeypatch.setattr(Tokenizer, "max_token_bytes", None)
    encode, lengths = Tokenizer.encode, []

    def counted(self: Tokenizer, text: str, *args: Any, **kwargs: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    message = refuse(llm, "x " * 1_000_000)
    assert "of its 2000000 characters" in message
    assert max(lengths) <= 64 * 16


def test_threads_take_turns(llm: LLM) -> None:
    prompts = [[65 + i, 66, 67] for i in range(8)]
    expected = [llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: llm.generate(prompt, GREEDY, use_tqdm=False), prompts * 4))
    assert [outputs[0].outputs[0].token_ids for outputs in found] == expected * 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cache_salt": 5}, "cache_salt must be text"),
        ({"cache_salt": "\ud800"}, "surrogate"),
        ({"priority": ["high", 1]}, "priority must be int, got 'high'"),
        ({"priority": [None, 1]}, "priority must be int"),
        ({"priority": [2**70, 1]}, "64 bits"),
        ({"priority": [1]}, "1 priority for 2 prompts"),
        ({"sampling_params": {"temperature": 0}}, "sampling_params must be SamplingParams"),
        ({"sampling_params": [{"temperature": 0}] * 2}, "sampling_params must be SamplingParams"),
    ],
)
def test_what_is_given_with_a_prompt(llm: LLM, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        llm.generate([[65], [66]], use_tqdm=False, **fields)
    assert not llm._engine.client.has_unfinished
    assert not llm._engine.client._requests


@pytest.mark.parametrize("prompts", [None, 5, {1, 2}, np.array([65, 66])])
def test_prompts_that_are_none(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="A prompt is a string"):
        llm.generate(prompts, GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="A conversation is a list of messages"):
        llm.chat(None, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_token_ids_of_numpy_are_whole_numbers(llm: LLM) -> None:
    expected, found = llm.generate([[65, 66], [np.int64(65), np.int32(66)]], GREEDY, use_tqdm=False)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert set(map(type, found.prompt_token_ids)) == {int}


def test_beam_search_takes_its_own_parameters(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="must be BeamSearchParams"):
        llm.beam_search([[65]], GREEDY)  # type: ignore[arg-type]


def test_what_is_no_list_of_messages(llm: LLM) -> None:
    message = {"role": "user", "content": "hi"}
    for messages, kind in (
        (message, "dict"),
        ((one for one in [message]), "generator"),
        ([(one for one in [message])], "generator"),
        ("hi", "str"),
        ([[message], "hi"], "str"),
    ):
        with pytest.raises(InvalidRequestError, match=f"A conversation is a list of messages, got {kind}"):
            llm.chat(messages, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
