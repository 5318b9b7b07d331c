"""/v1/chat/completions through the official client, against a real server process with a tiny model.

Where a test needs the model to say something, structured output makes it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from tests.server.running_server import RunningServer

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


def chat(server: RunningServer, **fields: Any) -> ChatCompletion:
    fields = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 100, "seed": 3} | fields
    answer = server.client().chat.completions.create(**fields)
    assert isinstance(answer, ChatCompletion)
    return answer


def chunks(server: RunningServer, **fields: Any) -> list[ChatCompletionChunk]:
    fields = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 100, "seed": 3, "stream": True} | fields
    return list(server.client().chat.completions.create(**fields))


def reassemble(parts: list[ChatCompletionChunk], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of a choice make, with its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    for choice in (choice for part in parts for choice in part.choices if choice.index == index):
        message["content"] += choice.delta.content or ""
        message["reasoning"] += (choice.delta.model_extra or {}).get("reasoning", "")
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.index == len(message["calls"])
                message["calls"].append({"id": call.id, "name": call.function and call.function.name, "arguments": ""})
            elif call.function is not None:
                message["calls"][call.index]["arguments"] += call.function.arguments or ""
        if choice.finish_reason is not None:
            assert message["finish_reason"] is None
            message["finish_reason"] = choice.finish_reason
    return message


def text_of(server: RunningServer, tokens: list[int]) -> str:
    text: str = server.http.post("/detokenize", json={"tokens": tokens}).raise_for_status().json()["prompt"]
    return text


def say(text: str) -> dict[str, Any]:
    """What makes the model say just that."""
    return {"extra_body": {"structured_outputs": {"choice": [text]}}, "max_completion_tokens": 400}


def test_an_answer_has_what_openai_says(tiny_server: RunningServer) -> None:
    answer = chat(tiny_server, max_completion_tokens=10)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert chat(tiny_server, max_completion_tokens=10).id != answer.id
    assert chat(tiny_server, max_completion_tokens=10).choices[0].message.content == choice.message.content


@pytest.mark.parametrize(
    "fields", [{}, {"n": 3}, {"stop": ["a", "e"]}, {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 0}]
)
def test_a_stream_concatenates_to_the_whole(tiny_server: RunningServer, fields: dict[str, Any]) -> None:
    whole, parts = chat(tiny_server, **fields), chunks(tiny_server, **fields)
    for choice in whole.choices:
        message = reassemble(parts, choice.index)
        assert message["content"] == choice.message.content
        assert message["finish_reason"] == choice.finish_reason
        of_choice = [c for part in parts for c in part.choices if c.index == choice.index]
        assert of_choice[0].delta.role == "assistant"
        if choice.logprobs is not None:
            streamed = [entry for c in of_choice if c.logprobs for entry in c.logprobs.content or ()]
            assert streamed == choice.logprobs.content


def test_the_async_client_gets_the_same(tiny_server: RunningServer) -> None:
    async def run() -> tuple[str | None, str]:
        async with tiny_server.async_client() as client:
            fields: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 100, "seed": 3}
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**fields), client.chat.completions.create(**fields, stream=True)
            )
            parts = [part async for part in stream]
            return whole.choices[0].message.content, reassemble(parts)["content"]

    expected = chat(tiny_server).choices[0].message.content
    assert asyncio.run(run()) == (expected, expected)


def test_logprobs_carry_bytes_that_make_the_text(tiny_server: RunningServer) -> None:
    choice = chat(tiny_server, logprobs=True, top_logprobs=2, temperature=0).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    data = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
    assert data.decode(errors="replace").startswith((choice.message.content or "").rstrip("\ufffd"))
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == entry.logprob >= entry.top_logprobs[1].logprob


def test_logprobs_alone_are_those_of_the_tokens(tiny_server: RunningServer) -> None:
    choice = chat(tiny_server, logprobs=True, max_completion_tokens=7).choices[0]
    assert choice.logprobs is not None
    assert [entry.top_logprobs for entry in choice.logprobs.content or ()] == [[]] * 7


def test_of_two_limits_the_newer_counts(tiny_server: RunningServer) -> None:
    usage = chat(tiny_server, max_tokens=3, max_completion_tokens=5).usage
    assert usage is not None
    assert usage.completion_tokens == 5


def test_a_prompt_far_too_long_can_be_cut(tiny_server: RunningServer) -> None:
    messages = [{"role": "user", "content": "long " * 20_000}]
    usage = chat(tiny_server, messages=messages, extra_body={"truncate_prompt_tokens": 50}).usage
    assert usage is not None
    assert usage.prompt_tokens == 50


def test_usage_and_token_ids(tiny_server: RunningServer) -> None:
    parts = chunks(
        tiny_server,
        stream_options={"include_usage": True},
        max_completion_tokens=20,
        extra_body={"return_token_ids": True},
    )
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 20
    prompt = tiny_server.http.post("/tokenize", json={"messages": HELLO}).raise_for_status().json()["tokens"]
    assert (parts[0].model_extra or {})["prompt_token_ids"] == prompt
    ids = [token for part in parts for c in part.choices for token in (c.model_extra or {}).get("token_ids", ())]
    whole = chat(tiny_server, max_completion_tokens=20, extra_body={"return_token_ids": True, "prompt_logprobs": 0})
    assert ids == (whole.choices[0].model_extra or {})["token_ids"]
    assert len((whole.model_extra or {})["prompt_logprobs"]) == len((whole.model_extra or {})["prompt_token_ids"])


def test_messages_may_come_in_parts_and_from_a_developer(tiny_server: RunningServer) -> None:
    def tokens(messages: list[dict[str, Any]]) -> str:
        ids = tiny_server.http.post("/tokenize", json={"messages": messages}).raise_for_status().json()["tokens"]
        return text_of(tiny_server, ids)

    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    expected = "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert tokens([{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}]) == expected


@pytest.mark.parametrize(
    "content", ["The answer\nis", [{"type": "text", "text": "The answer"}, {"type": "text", "text": "is"}]]
)
def test_the_last_message_can_be_continued(tiny_server: RunningServer, content: Any) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    options = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    whole = chat(tiny_server, messages=messages, extra_body=options).choices[0].message.content
    assert whole is not None
    assert whole.startswith("The answer\nis")
    assert reassemble(chunks(tiny_server, messages=messages, extra_body=options))["content"] == whole


@pytest.mark.parametrize(
    ("choice", "name"), [("required", None), ({"type": "function", "function": {"name": "weather"}}, "weather")]
)
def test_a_demanded_call_is_made_and_fits_its_schema(tiny_server: RunningServer, choice: Any, name: str | None) -> None:
    fields = {
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice,
        "max_completion_tokens": 300,
        "parallel_tool_calls": False,
    }
    for seed in range(4):
        answer = chat(tiny_server, seed=seed, **fields).choices[0]
        assert answer.finish_reason == "tool_calls"
        [call] = answer.message.tool_calls or ()
        assert call.type == "function"
        assert call.function.name == name or name is None
        arguments = json.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "clock" else set(arguments) == {"city", "days"}
        message = reassemble(chunks(tiny_server, seed=seed, **fields))
        assert message["finish_reason"] == "tool_calls"
        assert not message["content"]
        [streamed] = message["calls"]
        assert (streamed["name"], streamed["arguments"]) == (call.function.name, call.function.arguments)


def test_calls_are_read_out_of_what_the_model_says(tiny_server: RunningServer) -> None:
    fields = say(f"Let me see.\n{CALL}\n{CALL}") | {"tools": [WEATHER]}
    answer = chat(tiny_server, **fields).choices[0]
    assert (answer.message.content or "").strip() == "Let me see."
    assert answer.finish_reason == "tool_calls"
    calls = answer.message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls if call.type == "function"] == [
        {"city": "Oslo", "days": 2}
    ] * 2
    assert calls[0].id != calls[1].id
    message = reassemble(chunks(tiny_server, **fields))
    assert message["content"].strip() == "Let me see."
    assert [json.loads(call["arguments"]) for call in message["calls"]] == [{"city": "Oslo", "days": 2}] * 2
    assert message["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_surrogate_pair_in_arguments_stays_escaped(tiny_server: RunningServer, stream: bool) -> None:
    arguments = r'{"city": "\ud83d"}'
    written = arguments.replace('"', r"\"")
    fields = say(CALL.replace('{"city": "Oslo", "days": 2}', f'"{written}"')) | {"tools": [WEATHER]}
    if stream:
        [made] = reassemble(chunks(tiny_server, **fields))["calls"]
        assert made["arguments"] == arguments
    else:
        [call] = chat(tiny_server, **fields).choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert call.function.arguments == arguments


def test_without_tools_the_same_text_is_content(tiny_server: RunningServer) -> None:
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        answer = chat(tiny_server, **say(CALL), **fields).choices[0]
        assert answer.message.content == CALL
        assert answer.message.tool_calls is None
        assert answer.finish_reason == "stop"


def test_a_call_and_its_result_can_be_sent_back(tiny_server: RunningServer) -> None:
    call = chat(tiny_server, **say(CALL), tools=[WEATHER]).choices[0].message
    [made] = call.tool_calls or ()
    messages = [
        *HELLO,
        call.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": made.id, "content": "Sun."},
    ]
    assert chat(tiny_server, messages=messages, tools=[WEATHER]).choices[0].message.content


def test_reasoning_is_apart_from_content(thinking_server: RunningServer) -> None:
    fields = say("<think>Oslo it is</think>Oslo")
    message = chat(thinking_server, **fields).choices[0].message
    extra = message.model_extra or {}
    assert (extra["reasoning"], extra["reasoning_content"], message.content) == ("Oslo it is", "Oslo it is", "Oslo")
    streamed = reassemble(chunks(thinking_server, **fields))
    assert (streamed["reasoning"], streamed["content"]) == ("Oslo it is", "Oslo")


def test_reasoning_that_the_prompt_opens_is_none_of_the_content(thinking_server: RunningServer) -> None:
    fields: dict[str, Any] = {"max_completion_tokens": 30, "extra_body": {"ignore_eos": True}}
    choice = chat(thinking_server, **fields).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None
    reasoning = (choice.message.model_extra or {})["reasoning"]
    assert reasoning
    streamed = reassemble(chunks(thinking_server, **fields))
    assert (streamed["reasoning"], streamed["content"]) == (reasoning, "")


def test_a_shaped_answer_is_content_though_the_prompt_opens_reasoning(thinking_server: RunningServer) -> None:
    message = chat(
        thinking_server, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    )
    assert set(json.loads(message.choices[0].message.content or "")) == {"colour", "count"}


def test_a_trusted_request_may_bring_its_template(thinking_server: RunningServer) -> None:
    body = {"messages": HELLO, "chat_template": "{% for m in messages %}[{{ m.content }}{{ mark }}]{% endfor %}"}
    body["chat_template_kwargs"] = {"mark": "!"}
    tokens = thinking_server.http.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    assert text_of(thinking_server, tokens) == "[Hello!]"


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "[]"),
        ({"reasoning_effort": None}, "[]"),
        ({"reasoning_effort": "low"}, "[low True]"),
        ({"reasoning_effort": "none"}, "[none False]"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "[low False]"),
    ],
)
def test_an_effort_reaches_the_template(thinking_server: RunningServer, fields: dict[str, Any], seen: str) -> None:
    template = "[{% if reasoning_effort %}{{ reasoning_effort }} {{ enable_thinking }}{% endif %}]"
    body = {"messages": HELLO, "chat_template": template, **fields}
    tokens = thinking_server.http.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    assert text_of(thinking_server, tokens) == seen
    asked = {**body, "max_tokens": 1, "return_token_ids": True}
    answer = thinking_server.http.post("/v1/chat/completions", json=asked).raise_for_status().json()
    assert answer["prompt_token_ids"] == tokens


class Answer(BaseModel):
    colour: str
    count: int


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def test_a_json_schema_is_kept(tiny_server: RunningServer) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = chat(tiny_server, response_format=response_format, n=4)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert Answer.model_validate_json(choice.message.content or "").colour in ("red", "blue")
    message = reassemble(chunks(tiny_server, response_format=response_format))
    assert message["content"] == chat(tiny_server, response_format=response_format).choices[0].message.content


def test_parse_gives_objects(tiny_server: RunningServer) -> None:
    class Mood(BaseModel):
        happy: bool

    client = tiny_server.client()
    fields: Any = {"model": "tiny", "messages": HELLO, "response_format": Mood, "seed": 1, "max_completion_tokens": 100}
    parsed = client.chat.completions.parse(**fields).choices[0].message.parsed
    assert isinstance(parsed, Mood)
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"content": "no role"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "x" * 2100}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": "clock"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}},
            "response_format.json_schema.schema",
        ),
        ({"extra_body": {"guided_regex": "a", "tools": [WEATHER], "tool_choice": "required"}}, "tool_choice"),
        ({"extra_body": {"chat_template": "{{ 1 }}"}}, "chat_template"),
        ({"extra_body": {"chat_template_kwargs": {"tokenize": True}}}, "chat_template_kwargs"),
        ({"extra_body": {"continue_final_message": True}}, "continue_final_message"),
        ({"extra_body": {"request_id": "x" * 129}}, "request_id"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"extra_body": {"best_of": 2}}, "best_of"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_breaks_a_rule_is_refused_with_its_field(
    tiny_server: RunningServer, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tiny_server.client().chat.completions.create(
            **({"model": "tiny", "messages": HELLO, "max_completion_tokens": 5} | fields), stream=stream
        )
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"best_of": 1, "use_beam_search": False}, {"best_of": None}])
def test_values_that_ask_for_nothing_are_taken(tiny_server: RunningServer, fields: dict[str, Any]) -> None:
    for path, prompt in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Hello"})):
        tiny_server.http.post(path, json={**prompt, "max_tokens": 1, **fields}).raise_for_status()


def test_unknown_fields_are_ignored(tiny_server: RunningServer) -> None:
    assert chat(tiny_server, extra_body={"safety_identifier": "x", "vendor_option": {"a": [1]}}).choices
