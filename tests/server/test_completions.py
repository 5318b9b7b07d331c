"""/v1/completions through the official client, against a real server process with a tiny model."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest
from openai.types import Completion
from tests.server.running_server import RunningServer

PROMPT = "The quick brown fox"


def complete(server: RunningServer, **fields: Any) -> Completion:
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "seed": 7} | fields
    answer = server.client().completions.create(**fields)
    assert isinstance(answer, Completion)
    return answer


def chunks(server: RunningServer, **fields: Any) -> list[Completion]:
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "seed": 7, "stream": True} | fields
    return list(server.client().completions.create(**fields))


def text_of(parts: list[Completion], index: int = 0) -> str:
    return "".join(choice.text for part in parts for choice in part.choices if choice.index == index)


def test_an_answer_has_what_openai_says(tiny_server: RunningServer) -> None:
    answer = complete(tiny_server)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "tiny"
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == len(PROMPT) + 12
    assert complete(tiny_server).id != answer.id


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"stop": ["a", "e", "\n"], "max_tokens": 200},
        {"prompt": [PROMPT, "Other", "Third"], "n": 2},
        {"prompt": list(b"plain ids"), "echo": True},
        {"echo": True, "logprobs": 2},
        {"temperature": 0, "logprobs": 0},
    ],
)
def test_a_stream_concatenates_to_the_whole(tiny_server: RunningServer, fields: dict[str, Any]) -> None:
    whole, parts = complete(tiny_server, **fields), chunks(tiny_server, **fields)
    assert {part.id for part in parts} == {parts[0].id}
    for choice in whole.choices:
        of_choice = [c for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(c.text for c in of_choice) == choice.text
        assert [c.finish_reason for c in of_choice if c.finish_reason] == [choice.finish_reason]
        if choice.logprobs is not None:
            logprobs = [c.logprobs for c in of_choice if c.logprobs is not None]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [x for part in logprobs for x in getattr(part, name)] == getattr(choice.logprobs, name)


def test_the_same_seed_gives_the_same_text_and_samples_differ(tiny_server: RunningServer) -> None:
    first = complete(tiny_server, n=3)
    assert [c.text for c in first.choices] == [c.text for c in complete(tiny_server, n=3).choices]
    assert len({c.text for c in first.choices}) == 3
    assert complete(tiny_server, seed=8).choices[0].text != first.choices[0].text


def test_several_prompts_are_answered_in_order(tiny_server: RunningServer) -> None:
    answer = complete(tiny_server, prompt=["one", "two"], n=2, echo=True)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text[:3] for c in answer.choices] == ["one", "one", "two", "two"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 48)


def test_echo_with_logprobs_scores_the_prompt_without_generating(tiny_server: RunningServer) -> None:
    answer = complete(tiny_server, echo=True, logprobs=1, max_tokens=0)
    [choice] = answer.choices
    assert choice.text == PROMPT
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list(PROMPT)
    assert choice.logprobs.text_offset == list(range(len(PROMPT)))
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None and value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_logprobs_hold_the_chosen_token_and_the_top_ones(tiny_server: RunningServer) -> None:
    [choice] = complete(tiny_server, logprobs=3, temperature=0).choices
    assert choice.logprobs is not None
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    for top, logprob in zip(choice.logprobs.top_logprobs, choice.logprobs.token_logprobs, strict=True):
        assert top is not None
        assert max(top.values()) == logprob
        assert list(top.values()) == sorted(top.values(), reverse=True)


@pytest.mark.parametrize(("num_echoed", "num_of_prompt"), [(5, 1), (1, 5), (0, 3), (3, 0)])
def test_echoed_logprobs_and_those_of_the_prompt_have_their_own_numbers(
    tiny_server: RunningServer, num_echoed: int, num_of_prompt: int
) -> None:
    def logprobs(**fields: Any) -> tuple[Any, Any]:
        [choice] = complete(tiny_server, max_tokens=1, echo=True, **fields).choices
        top = choice.logprobs and choice.logprobs.top_logprobs
        return top, (choice.model_extra or {}).get("prompt_logprobs")

    echoed, of_prompt = logprobs(logprobs=num_echoed, extra_body={"prompt_logprobs": num_of_prompt})
    assert echoed == logprobs(logprobs=num_echoed)[0]
    assert of_prompt == logprobs(extra_body={"prompt_logprobs": num_of_prompt})[1]


def test_what_ends_a_token_that_is_not_shown_is_not_told(tiny_server: RunningServer) -> None:
    for stops in ({"stop_token_ids": list(range(320))}, {"stop": [chr(code) for code in range(97, 113)]}):
        [choice] = complete(tiny_server, echo=True, max_tokens=0, seed=1, extra_body=stops).choices
        assert (choice.text, choice.finish_reason, choice.model_extra) == (PROMPT, "length", {"stop_reason": None})


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("skips", [True, False])
def test_offsets_are_of_the_text_that_is_shown(tiny_server: RunningServer, as_ids: bool, skips: bool) -> None:
    prompt = "a😀é<|im_start|>b<|im_end|>😀c"
    ids = tiny_server.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    [choice] = complete(
        tiny_server,
        prompt=ids if as_ids else prompt,
        echo=True,
        logprobs=0,
        max_tokens=60,
        extra_body={"skip_special_tokens": skips, "ignore_eos": True, "return_token_ids": True},
    ).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.text_offset is not None
    of_prompt = list(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))[: len(ids)]
    starts_shown = [0, *[1] * 4, *[2] * 2, 3, 15, 16, *[26] * 4, 27]
    starts_skipped = [0, *[1] * 4, *[2] * 2, 3, 3, 4, *[4] * 4, 5]
    assert [offset for _, offset in of_prompt] == (starts_skipped if as_ids and skips else starts_shown)
    of_sample = list(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))[len(ids) :]
    whole = [(token, offset) for token, offset in of_sample if "�" not in token and not (skips and "<|" in token)]
    assert whole
    for token, offset in whole:
        assert choice.text[offset : offset + len(token)] == token


def test_a_stop_string_ends_the_text_before_it(tiny_server: RunningServer) -> None:
    whole = complete(tiny_server, max_tokens=60).choices[0].text
    stop = whole[20:22]
    stopped = complete(tiny_server, max_tokens=60, stop=stop).choices[0]
    assert stopped.text == whole[: whole.index(stop)]
    assert stopped.finish_reason == "stop"
    assert stopped.model_extra == {"stop_reason": stop}


def test_usage_options(tiny_server: RunningServer) -> None:
    plain = chunks(tiny_server)
    assert all(part.usage is None for part in plain)
    parts = chunks(tiny_server, stream_options={"include_usage": True})
    assert [part.usage is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 12
    counted = chunks(tiny_server, stream_options={"continuous_usage_stats": True})
    counts = [part.usage.completion_tokens for part in counted if part.usage is not None]
    assert len(counts) == len(counted)
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_cached_tokens_are_told_and_a_salt_keeps_prompts_apart(tiny_server: RunningServer) -> None:
    prompt = "A prompt of more than two blocks, said for the first time in these tests."

    def cached(**extra: Any) -> int | None:
        usage = complete(tiny_server, prompt=prompt, extra_body=extra).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens

    assert cached(cache_salt="x") == 0
    assert cached(cache_salt="x") == 64
    assert cached(cache_salt="y") == 0


def test_token_ids_come_back_where_asked(tiny_server: RunningServer) -> None:
    ids = list(b"abc")
    extra = complete(tiny_server, prompt=ids, extra_body={"return_token_ids": True}).choices[0].model_extra
    assert extra is not None
    assert extra["prompt_token_ids"] == ids
    assert len(extra["token_ids"]) == 12
    streamed = [
        c.model_extra for p in chunks(tiny_server, prompt=ids, extra_body={"return_token_ids": True}) for c in p.choices
    ]
    assert [token for part in streamed if part for token in part["token_ids"]] == extra["token_ids"]
    assert [part["prompt_token_ids"] for part in streamed if part and "prompt_token_ids" in part] == [ids]


def test_prompt_logprobs(tiny_server: RunningServer) -> None:
    extra = complete(tiny_server, prompt="abc", extra_body={"prompt_logprobs": 1}).choices[0].model_extra
    assert extra is not None
    first, *others = extra["prompt_logprobs"]
    assert first is None
    for token, position in zip("bc", others, strict=True):
        assert next(iter(position.values()))["decoded_token"] == token
        assert {entry["rank"] for entry in position.values()} >= {1}


def test_a_prompt_is_truncated_from_the_left(tiny_server: RunningServer) -> None:
    answer = complete(tiny_server, prompt="0123456789", echo=True, extra_body={"truncate_prompt_tokens": 4})
    assert answer.choices[0].text.startswith("6789")
    long = complete(tiny_server, prompt="x" * 3000, max_tokens=5, extra_body={"truncate_prompt_tokens": -1})
    assert long.usage is not None
    assert long.usage.prompt_tokens == 2048 - 5


@pytest.mark.parametrize("max_tokens", [2046, 100_000])
def test_a_prompt_that_fits_is_kept_whatever_the_answer_may_take(tiny_server: RunningServer, max_tokens: int) -> None:
    extra = {"truncate_prompt_tokens": -1, "stop_token_ids": list(range(320))}
    answer = complete(tiny_server, prompt="0123456789", max_tokens=max_tokens, extra_body=extra)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 129}, "n"),
        ({"n": 3, "prompt": ["x"] * 200}, "n"),
        ({"n": 9, "echo": True, "logprobs": 1}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt.1"),
        ({"prompt": ["a", ""], "stream": True}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": [320]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": "x" * 2048}, "prompt"),
        ({"prompt": "x" * 2048, "stream": True}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"min_tokens": 13}}, "min_tokens"),
        ({"extra_body": {"allowed_token_ids": [320]}}, "allowed_token_ids"),
        ({"extra_body": {"prompt_logprobs": 1, "stream": True}}, "prompt_logprobs"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["a"]}}}, "structured_outputs"),
        ({"extra_body": {"guided_regex": "(", "stream": True}}, "guided_regex"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_field(
    tiny_server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(tiny_server, **fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    tiny_server.wait_for_load(0)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400"])
@pytest.mark.parametrize("field", [b"temperature", b"top_p", b"min_p", b"presence_penalty", b"repetition_penalty"])
def test_numbers_that_json_does_not_have_are_refused(tiny_server: RunningServer, field: bytes, number: bytes) -> None:
    body = b'{"prompt": "a", "%b": %b}' % (field, number)
    answer = tiny_server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]["message"]


def test_the_model_is_listed_as_it_is_served(tiny_server: RunningServer) -> None:
    (model,) = tiny_server.client().models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "quire")
    assert abs(time.time() - model.created) < 86_400, "that is no time of day"


def test_another_models_name_is_not_found(tiny_server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError):
        complete(tiny_server, model="gpt-4")


def test_a_large_max_tokens_ends_at_the_context(null_server: RunningServer) -> None:
    answer = complete(null_server, model=null_server.model, max_tokens=2**62, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.total_tokens == 8192


def test_a_request_id_is_echoed_and_need_not_be_unique(tiny_server: RunningServer) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> tuple[str | None, str]:
        raw = await client.completions.with_raw_response.create(
            model="tiny", prompt=PROMPT, seed=seed, max_tokens=40, extra_body={"request_id": "mine"}
        )
        return raw.headers.get("x-request-id"), raw.parse().choices[0].text

    async def many() -> list[tuple[str | None, str]]:
        async with tiny_server.async_client() as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(12)))

    together = asyncio.run(many())
    alone = [complete(tiny_server, seed=seed, max_tokens=40).choices[0].text for seed in range(12)]
    assert together == [("mine", text) for text in alone]


def test_structured_outputs(tiny_server: RunningServer) -> None:
    for extra in ({"structured_outputs": {"choice": ["yes", "no"]}}, {"guided_choice": ["yes", "no"]}):
        answer = complete(tiny_server, n=4, extra_body=extra)
        assert {c.text for c in answer.choices} <= {"yes", "no"}
        assert {c.finish_reason for c in answer.choices} == {"stop"}
    digits = complete(tiny_server, extra_body={"structured_outputs": {"regex": "[0-9]{5}"}}).choices[0].text
    assert len(digits) == 5
    assert digits.isdigit()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"truncate_prompt_tokens": -1}, {"add_special_tokens": False}])
def test_of_several_prompts_the_refused_one_is_named(
    tiny_server: RunningServer, more: dict[str, Any], stream: bool
) -> None:
    body = {"prompt": ["a", "b", ""], "max_tokens": 1, "stream": stream, **more}
    answer = tiny_server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "prompt[2]"
    assert error["message"].startswith("prompt[2]: The prompt has no tokens")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_announced_as_json_is_told_so(tiny_server: RunningServer, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = tiny_server.http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]
