"""Structured output end to end: with every sampling choice, however it is scheduled, and never at a neighbour's cost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.engine.test_bitwise import ENGINES, NEIGHBOUR, PROBE, answer, prompts

from quire import LLM, AsyncLLM, RequestOutput, SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["calm", "glad"]},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["name", "age", "mood", "friends"],
    "additionalProperties": False,
}


def wanting(temperature: float = 1.0, max_tokens: int = 150, **fields: Any) -> SamplingParams:
    form = {key: fields.pop(key) for key in list(fields) if key in StructuredOutputs.__struct_fields__}
    return SamplingParams(
        structured_outputs=StructuredOutputs(**form),
        **{"temperature": temperature, "max_tokens": max_tokens, "seed": 4, **fields},
    )


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), dtype="float32", num_threads=1, seed=1) as llm:
        yield llm


def run(llm: LLM, params: SamplingParams, prompt: Any = "abc") -> RequestOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0]


def finished_text(llm: LLM, params: SamplingParams) -> str:
    sample = run(llm, params).outputs[0]
    assert (sample.finish_reason, sample.stop_reason, sample.error) == ("stop", None, None)
    return sample.text


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_form_is_kept(llm: LLM, temperature: float) -> None:
    assert re.fullmatch(r"\d{3}-[a-c]{2}", finished_text(llm, wanting(temperature, regex=r"\d{3}-[a-c]{2}")))
    assert finished_text(llm, wanting(temperature, choice=["yes", "no", "é\n"])) in ("yes", "no", "é\n")
    assert re.fullmatch("x[0-9]y", finished_text(llm, wanting(temperature, grammar='root ::= "x" [0-9] "y"')))
    jsonschema.validate(json.loads(finished_text(llm, wanting(temperature, json=PERSON))), PERSON)


def test_json_object_is_json_as_far_as_it_goes(llm: LLM) -> None:
    sample = run(llm, wanting(json_object=True, max_tokens=60)).outputs[0]
    assert sample.text.startswith("{")
    if sample.finish_reason == "stop":
        assert isinstance(json.loads(sample.text), dict)


@pytest.mark.parametrize("seed", range(4))
def test_json_never_holds_whitespace_without_end(llm: LLM, seed: int) -> None:
    text = run(llm, wanting(1.8, json={"type": "array", "items": {"type": "boolean"}}, seed=seed)).outputs[0].text
    assert re.search(r"\s\s", text) is None


def test_samples_of_one_request_each_have_their_own_grammar(llm: LLM) -> None:
    output = run(llm, wanting(1.5, json=PERSON, n=5))
    texts = [sample.text for sample in output.outputs]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 3},
        {"repetition_penalty": 1.4, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"logit_bias": {65: 100.0, 256: -100.0}},
        {"bad_words": ["glad"]},
        {"top_k": 3, "top_p": 0.9, "min_p": 0.01},
        {"min_tokens": 30},
        {"ignore_eos": True},
        {"min_tokens": 150, "ignore_eos": True},
    ],
    ids=str,
)
def test_it_composes_with_every_other_choice(llm: LLM, fields: dict[str, Any]) -> None:
    """The grammar wins over ignore_eos and min_tokens: where it is complete, the text ends."""
    output = run(llm, wanting(json=PERSON, **fields)).outputs[0]
    assert output.finish_reason == "stop"
    person = json.loads(output.text)
    jsonschema.validate(person, PERSON)
    if "bad_words" in fields:
        assert person["mood"] == "calm"
    if "logprobs" in fields:
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)


def test_min_tokens_holds_a_text_open_that_may_go_on(llm: LLM) -> None:
    sample = run(llm, wanting(regex="[a-z]{2,60}", min_tokens=20, logit_bias={256: 100.0})).outputs[0]
    assert len(sample.token_ids) >= 20
    assert sample.finish_reason == "stop"


def test_a_stop_string_ends_it_early(llm: LLM) -> None:
    sample = run(llm, wanting(json=PERSON, stop=['"age"'])).outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", '"age"')
    assert sample.text.startswith('{"name"')


def test_a_dead_end_ends_that_request_alone(llm: LLM) -> None:
    good = wanting(0.0, json=PERSON)
    expected = run(llm, good).outputs[0].token_ids
    dead = wanting(choice=["yes"], bad_words=["e"])
    outputs = llm.generate(["abc", "abc", "abc"], [good, dead, good], use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "error", "stop"]
    assert "structured_outputs" in str(outputs[1].outputs[0].error)
    assert outputs[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids == expected


def test_cve_2025_48942_a_refused_schema_starts_nothing_and_the_neighbour_is_as_before(llm: LLM) -> None:
    good = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    before = run(llm, good).outputs[0].token_ids
    for form in ({"json": {"not": {}}}, {"regex": "["}, {"grammar": "root ::= ("}, {"regex": "(a?){5000}a{5000}"}):
        with pytest.raises(InvalidRequestError) as refused:
            llm.generate(["abc", "abc"], [good, wanting(**form)], use_tqdm=False)
        assert str(refused.value.field).startswith("structured_outputs.")
        assert not llm._engine.client.has_unfinished
        assert run(llm, good).outputs[0].token_ids == before


PROBE_PARAMS = wanting(0.9, json=PERSON, logprobs=2, max_tokens=60)


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> Any:
    with LLM(str(tiny_llama), **ENGINES["reference"]) as llm:
        return answer(run(llm, PROBE_PARAMS, PROBE))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_steps_in_flight": 2},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 22, "max_model_len": 256},
        {"num_blocks": 17, "max_model_len": 256, "num_steps_in_flight": 2, "max_num_batched_tokens": 64},
    ],
    ids=["plain", "two steps in flight", "chunked", "preempted", "all at once"],
)
def test_a_structured_request_is_bitwise_the_same_however_it_is_scheduled(
    tiny_llama: Path, expected: Any, config: dict[str, Any]
) -> None:
    with LLM(str(tiny_llama), **{**ENGINES["reference"], **config}) as llm:
        batch: list[Any] = [*prompts(6, seed=6), PROBE, PROBE]
        neighbours = [NEIGHBOUR, wanting(json=PERSON, max_tokens=40), wanting(choice=["a", "b"])] * 2
        outputs = llm.generate(batch, [*neighbours, PROBE_PARAMS, PROBE_PARAMS], use_tqdm=False)
        assert answer(outputs[-2]) == answer(outputs[-1]) == expected
        assert (llm._engine.client.engine.scheduler.num_preemptions > 0) == ("num_blocks" in config)


def test_it_streams(tiny_llama: Path) -> None:
    async def stream() -> tuple[str, int]:
        async with AsyncLLM(str(tiny_llama), dtype="float32", num_threads=1) as llm:
            with pytest.raises(InvalidRequestError, match="uniqueItems"):
                await anext(llm.generate("abc", wanting(json={"uniqueItems": True})))
            texts = [output.outputs[0].text async for output in llm.generate("abc", wanting(json=PERSON))]
            return texts[-1], len(texts)

    text, num_outputs = asyncio.run(stream())
    jsonschema.validate(json.loads(text), PERSON)
    assert num_outputs > 10


REAL_SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {
        "type": "object",
        "properties": {"when": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}},
        "required": ["when", "id"],
        "additionalProperties": False,
    },
    {
        "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}},
        "$ref": "#/$defs/tree",
    },
    {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"},
    {"type": "object", "patternProperties": {"^x-[a-z]{1,3}$": {"type": "boolean"}}, "additionalProperties": False},
    {"const": {"a": [1, 2.5, "é"], "b": None}},
]


@pytest.mark.real
def test_the_real_models_finished_answers_validate(smollm2: str) -> None:
    with LLM(smollm2, num_blocks=200, max_model_len=512) as llm:
        chats = [[{"role": "user", "content": "Answer in JSON."}]] * len(REAL_SCHEMAS)
        outputs = llm.chat(chats, [wanting(0.7, json=schema) for schema in REAL_SCHEMAS], use_tqdm=False)
    finished = [output.outputs[0].finish_reason == "stop" for output in outputs]
    for output, schema, ended in zip(outputs, REAL_SCHEMAS, finished, strict=True):
        assert output.outputs[0].error is None
        if ended:
            jsonschema.validate(json.loads(output.outputs[0].text), schema)
    assert sum(finished) >= 5


@pytest.mark.real
def test_a_sentencepiece_model_of_a_large_vocabulary(gemma3: str) -> None:
    with LLM(gemma3, num_blocks=40, max_model_len=256) as llm:
        output = run(llm, wanting(0.0, json=PERSON, max_tokens=60), "A person in JSON: ").outputs[0]
    assert output.error is None
    assert output.text.startswith('{"name":')
    if output.finish_reason == "stop":
        jsonschema.validate(json.loads(output.text), PERSON)
