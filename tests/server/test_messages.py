"""/v1/messages through the official anthropic client, against real server processes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import pydantic
import pytest
from anthropic.types import Message
from tests.server.running_server import RunningServer, running_server

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello there"}]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "The weather?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A tool!", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "Go on."},
        ],
    },
]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(tiny_server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=tiny_server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: anthropic.Anthropic, body: dict[str, Any] | None = None, **fields: Any) -> Message:
    """`body`: fields that the client does not know (any more)."""
    fields = {"model": "tiny", "messages": HELLO, "max_tokens": 12} | fields
    answer = client.messages.create(**fields, extra_body=GREEDY | (body or {}))
    assert isinstance(answer, Message)
    return answer


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def num_prompt_tokens(message: Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def refusal(server: RunningServer, **fields: Any) -> tuple[int, str, str]:
    answer = server.http.post("/v1/messages", json={"messages": HELLO, "max_tokens": 4} | fields)
    body = answer.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    return answer.status_code, body["error"]["type"], body["error"]["message"]


def test_an_answer_has_what_anthropic_says(client: anthropic.Anthropic) -> None:
    answer = ask(client)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg_")
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.usage.output_tokens == 12


def test_it_says_what_chat_completions_says(client: anthropic.Anthropic, tiny_server: RunningServer) -> None:
    chat = tiny_server.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "Hello there"}],
        max_tokens=12,
        temperature=0,
    )
    answer = ask(client, system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}])
    assert text_of(answer) == chat.choices[0].message.content
    assert chat.usage is not None
    assert num_prompt_tokens(answer) == chat.usage.prompt_tokens


def test_a_stream_tells_of_the_same_message(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    with client.messages.stream(model="tiny", messages=HELLO, max_tokens=12, extra_body=GREEDY) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_message()
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)


def test_the_async_client(tiny_server: RunningServer, client: anthropic.Anthropic) -> None:
    async def main() -> tuple[Message, str, int]:
        async with anthropic.AsyncAnthropic(base_url=tiny_server.url, api_key="none", max_retries=0) as client:
            fields: dict[str, Any] = {"model": "tiny", "messages": HELLO}
            whole, count = await asyncio.gather(
                client.messages.create(**fields, max_tokens=12, extra_body=GREEDY),
                client.messages.count_tokens(**fields),
            )
            async with client.messages.stream(**fields, max_tokens=12, extra_body=GREEDY) as stream:
                return whole, "".join([text async for text in stream.text_stream]), count.input_tokens

    whole, streamed, count = asyncio.run(main())
    assert text_of(whole) == streamed == text_of(ask(client))
    assert count == num_prompt_tokens(whole)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": TALK},
        {"system": "Be brief.", "messages": TALK, "tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"messages": [*HELLO, {"role": "assistant", "content": "I say"}]},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_counted_tokens_are_the_prompts(client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    count = client.messages.count_tokens(**{"model": "tiny", "messages": HELLO} | fields).input_tokens
    cold, warm = (ask(client, {"cache_salt": f"count{salt}"}, **fields) for salt in (uuid.uuid4().hex, ""))
    assert (cold.usage.input_tokens, cold.usage.cache_read_input_tokens) == (count, 0)
    # Anthropic counts what was cached apart.
    assert num_prompt_tokens(warm) == count


def test_blocks_of_every_kind_reach_the_model(client: anthropic.Anthropic) -> None:
    def count(messages: list[dict[str, Any]], **fields: Any) -> int:
        return client.messages.count_tokens(model="tiny", messages=messages, **fields).input_tokens

    assert count(TALK[:1]) < count([*TALK[:1], *HELLO]) < count(TALK) < count(TALK, tools=[WEATHER])
    failed = [*TALK[:2], {"role": "user", "content": [{**TALK[2]["content"][0], "is_error": True}]}]
    worked = [*TALK[:2], {"role": "user", "content": TALK[2]["content"][:1]}]
    assert count(failed) == count(worked) + len("Error: ")


def test_an_answer_goes_on_with_the_assistants_words(client: anthropic.Anthropic, tiny_server: RunningServer) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "I say"}]
    chat = tiny_server.client().chat.completions.create(
        model="tiny",
        messages=begun,
        max_tokens=12,
        temperature=0,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    assert text_of(ask(client, messages=begun)) == chat.choices[0].message.content


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    text = text_of(ask(client, max_tokens=40))
    end = next(char for char in text[3:] if char.isprintable() and char != "\ufffd")
    answer = ask(client, max_tokens=40, stop_sequences=["never there", end])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", end)
    assert text_of(answer) == text[: text.index(end)]


def test_sampling_fields_reach_the_engine(client: anthropic.Anthropic) -> None:
    hot = [text_of(ask(client, {"temperature": 1, "seed": seed})) for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    assert text_of(ask(client, {"temperature": 1, "top_k": 1})) == text_of(ask(client))
    assert text_of(ask(client, {"temperature": 1, "top_p": 1e-6})) == text_of(ask(client))


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_be_made_is_made(client: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 300,
        "tools": [WEATHER],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "extra_body": {"seed": 3},
    }
    with client.messages.stream(**fields) as stream:
        for _ in stream:
            pass
        streamed: Message = stream.get_final_message()
    for answer in (client.messages.create(**fields), streamed):
        assert answer.stop_reason == "tool_use"
        [call] = answer.content
        assert call.type == "tool_use"
        assert call.name == "get_weather"
        assert call.input["city"] in ("Paris", "Rome")


class Paint(pydantic.BaseModel):
    color: Literal["red", "blue"]


def test_structured_text(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(model="tiny", messages=HELLO, max_tokens=200, output_format=Paint)
    assert isinstance(answer.parsed_output, Paint)
    assert answer.stop_reason == "end_turn"


def test_structured_text_is_the_answer_though_the_prompt_opens_reasoning(thinking_server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=thinking_server.url, api_key="none", max_retries=0, timeout=60) as client:
        answer = client.messages.parse(model="tiny", messages=HELLO, max_tokens=200, output_format=Paint)
    assert [block.type for block in answer.content] == ["text"]
    assert isinstance(answer.parsed_output, Paint)


def test_cve_2025_46570_only_requests_of_one_salt_share_prompts(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": uuid.uuid4().hex * 4}]
    salts = [uuid.uuid4().hex, uuid.uuid4().hex]
    cached = [ask(client, {"cache_salt": salts[i]}, messages=messages).usage.cache_read_input_tokens for i in (0, 1, 0)]
    assert cached[:2] == [0, 0]
    assert cached[2] is not None
    assert cached[2] > 100


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": TALK[1]["content"]}]}, "messages.0.content.0"),
        ({"messages": TALK[:2]}, "messages.1"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"container": "c"}, "container"),
        ({"temperature": -1}, "temperature"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_is_refused_is_named(tiny_server: RunningServer, fields: dict[str, Any], named: str) -> None:
    status, kind, message = refusal(tiny_server, **fields)
    assert (status, kind) == (400, "invalid_request_error")
    assert named in message


def test_errors_are_anthropics_on_these_routes_only(tiny_server: RunningServer, client: anthropic.Anthropic) -> None:
    assert refusal(tiny_server, model="other")[:2] == (404, "not_found_error")
    with pytest.raises(anthropic.NotFoundError, match="other"):
        ask(client, model="other")
    wrong = tiny_server.http.post("/v1/messages/count_tokens", content=b"{")
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")
    assert set(tiny_server.http.post("/v1/chat/completions", content=b"{").json()) == {"error"}


def test_the_key_may_come_as_anthropics_clients_send_it(tiny_llama: Path) -> None:
    flags = ("--executor", "null", "--served-model-name", "tiny")
    with (
        running_server(str(tiny_llama), *flags, api_key="secret") as server,
        anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0, timeout=60) as knowing,
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0, timeout=60) as guessing,
    ):
        assert ask(knowing).usage.output_tokens == 12
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(guessing)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert caught.value.body["type"] == "error"


@pytest.mark.real
def test_the_real_model_calls_and_is_told_the_result(real_server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=real_server.url, api_key="none", max_retries=0, timeout=120) as client:
        talk: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
        fields: dict[str, Any] = {"model": real_server.model, "max_tokens": 40, "extra_body": GREEDY}
        choice = {"type": "tool", "name": "get_weather"}
        answer = client.messages.create(**fields, messages=talk, tools=[WEATHER], tool_choice=choice)
        [call] = answer.content
        assert call.type == "tool_use"
        assert call.input == {"city": "Paris"}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 25 degrees."}
        talk += [
            {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
            {"role": "user", "content": [result]},
        ]
        assert "sunny" in text_of(client.messages.create(**fields, messages=talk)).lower()
