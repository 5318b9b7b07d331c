"""/v1/responses through the official client, against real server processes."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from tests.server.conftest import TINY_FLAGS
from tests.server.running_server import RunningServer, running_server

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "strict": False,
}
TALK = [
    {"role": "user", "content": "The weather?"},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sunny"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
]


def respond(server: RunningServer, **fields: Any) -> Response:
    fields = {"model": "tiny", "input": "Hello there", "max_output_tokens": 12, "temperature": 0} | fields
    answer = server.client().responses.create(**fields)
    assert isinstance(answer, Response)
    return answer


def events(server: RunningServer, **fields: Any) -> list[ResponseStreamEvent]:
    fields = {"model": "tiny", "input": "Hello there", "max_output_tokens": 12, "temperature": 0} | fields
    return list(server.client().responses.create(**fields, stream=True))


def usage(answer: Response) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them were cached."""
    assert answer.usage is not None
    return answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens


def refusal(server: RunningServer, **fields: Any) -> tuple[int, str | None, str]:
    answer = server.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 4} | fields)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def test_an_answer_has_what_openai_says(tiny_server: RunningServer) -> None:
    answer = respond(tiny_server, metadata={"a": "b"}, instructions="Be brief.", user="me", tools=[WEATHER])
    assert (answer.object, answer.model, answer.status) == ("response", "tiny", "incomplete")
    assert answer.id.startswith("resp_")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"}
    assert (answer.instructions, answer.max_output_tokens, answer.temperature, answer.top_p) == ("Be brief.", 12, 0, 1)
    assert [tool.to_dict() for tool in answer.tools] == [WEATHER]
    strict = WEATHER | {"strict": True}
    assert [tool.to_dict() for tool in respond(tiny_server, tools=[strict]).tools] == [strict]
    assert answer.usage is not None
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    Response.model_validate(answer.to_dict(), strict=False)


def test_it_says_what_chat_completions_says(tiny_server: RunningServer) -> None:
    chat = tiny_server.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}],
        max_tokens=12,
        temperature=0,
    )
    answer = respond(tiny_server, instructions="Be brief.")
    assert answer.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert usage(answer)[0] == chat.usage.prompt_tokens


def test_a_stream_tells_of_the_same_answer(tiny_server: RunningServer) -> None:
    told = events(tiny_server)
    item = ["response.output_item.added", "response.content_part.added"]
    types = [event.type for event in told]
    assert types[:4] == ["response.created", "response.in_progress", *item]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    assert types[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert [event.sequence_number for event in told] == list(range(len(told)))
    text = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    last = told[-1]
    assert last.type == "response.incomplete"
    assert text == last.response.output_text == respond(tiny_server).output_text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 12


def test_the_async_client_streams(tiny_server: RunningServer) -> None:
    async def main() -> str:
        async with tiny_server.async_client() as client:
            answer = await client.responses.create(
                model="tiny", input="Hello there", max_output_tokens=12, temperature=0, stream=True
            )
            return "".join([event.delta async for event in answer if event.type == "response.output_text.delta"])

    assert asyncio.run(main()) == respond(tiny_server).output_text


def test_going_on_from_a_response_is_sending_everything_again(tiny_server: RunningServer) -> None:
    first = respond(tiny_server, instructions="Not kept.")
    said = [item.to_dict() for item in first.output]
    second = respond(tiny_server, input="And then?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    sent: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello there"},
        *said,
        {"role": "user", "content": "And then?"},
    ]
    again = respond(tiny_server, input=sent)
    assert (usage(again)[0], again.output_text) == (usage(second)[0], second.output_text)
    third = respond(tiny_server, input="Well?", previous_response_id=second.id, stream=False)
    sent += [*[item.to_dict() for item in second.output], {"role": "user", "content": "Well?"}]
    assert usage(third)[0] == usage(respond(tiny_server, input=sent))[0]


def test_a_streamed_response_is_kept_too(tiny_server: RunningServer) -> None:
    last = events(tiny_server)[-1]
    assert last.type == "response.incomplete"
    assert tiny_server.client().responses.retrieve(last.response.id) == last.response


def test_a_response_is_kept_until_it_is_deleted(tiny_server: RunningServer) -> None:
    client = tiny_server.client()
    answer = respond(tiny_server)
    assert client.responses.retrieve(answer.id) == answer
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(answer.id)
    with pytest.raises(openai.BadRequestError) as caught:
        respond(tiny_server, previous_response_id=answer.id)
    assert caught.value.param == "previous_response_id"


def test_what_is_not_to_be_stored_is_not(tiny_server: RunningServer) -> None:
    answer = respond(tiny_server, store=False)
    with pytest.raises(openai.NotFoundError):
        tiny_server.client().responses.retrieve(answer.id)


def test_input_items_page_by_page(tiny_server: RunningServer) -> None:
    client = tiny_server.client()
    answer = respond(tiny_server, input=TALK)
    kinds = ["message", "function_call", "function_call_output", "message", "message"]
    for order, expected in (("asc", kinds), ("desc", kinds[::-1])):
        page = client.responses.input_items.list(answer.id, order=order, limit=2)
        assert page.has_more
        assert [item.type for item in page] == expected
    assert not client.responses.input_items.list(answer.id, limit=len(kinds)).has_more
    said = respond(tiny_server, input=[{"role": role, "content": "x"} for role in ("user", "assistant", "user")])
    listed = tiny_server.http.get(f"/v1/responses/{said.id}/input_items?order=asc").json()["data"]
    assert [(item["status"], item["content"][0]["type"]) for item in listed] == [
        ("completed", kind) for kind in ("input_text", "output_text", "input_text")
    ]


def test_items_of_every_kind_reach_the_model(tiny_server: RunningServer) -> None:
    lengths = [usage(respond(tiny_server, input=TALK[:end]))[0] for end in (1, 3, 4, 5)]
    assert lengths == sorted(set(lengths))
    reasoned = [TALK[0], {"type": "reasoning", "id": "rs_1", "summary": []}, *TALK[3:]]
    assert usage(respond(tiny_server, input=reasoned))[0] > usage(respond(tiny_server, input=[TALK[0], *TALK[4:]]))[0]


class Paint(pydantic.BaseModel):
    color: Literal["red", "blue"]
    glossy: bool


def test_structured_text(tiny_server: RunningServer) -> None:
    parsed = tiny_server.client().responses.parse(
        model="tiny", input="Choose.", text_format=Paint, max_output_tokens=200, temperature=1
    )
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Paint)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    with tiny_server.client().responses.stream(
        model="tiny", input="Choose.", text_format=Paint, max_output_tokens=200
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Paint)


def test_structured_text_is_the_answer_though_the_prompt_opens_reasoning(thinking_server: RunningServer) -> None:
    parsed = thinking_server.client().responses.parse(
        model="tiny", input="Choose.", text_format=Paint, max_output_tokens=200
    )
    assert [item.type for item in parsed.output] == ["message"]
    assert isinstance(parsed.output_parsed, Paint)


def test_a_required_call_is_made(tiny_server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_output_tokens": 400,
        "extra_body": {"temperature": 1, "seed": 1},
    }
    last = events(tiny_server, **fields)[-1]
    assert last.type == "response.completed"
    for answer in (respond(tiny_server, **fields), last.response):
        assert answer.status == "completed"
        calls = [item for item in answer.output if item.type == "function_call"]
        assert calls
        for call in calls:
            assert (call.name, call.status) == ("get_weather", "completed")
            assert json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_a_call_that_was_cut_can_be_gone_on_from(tiny_server: RunningServer) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "extra_body": {"seed": 1}}
    for max_output_tokens in range(40, 400, 4):
        answer = respond(tiny_server, tool_choice="required", max_output_tokens=max_output_tokens, **fields)
        if answer.output and answer.output[-1].type == "function_call":
            break
    call = answer.output[-1]
    assert call.type == "function_call"
    assert call.status == "incomplete"
    with pytest.raises(ValueError, match="line 1"):
        json.loads(call.arguments)
    assert tiny_server.client().responses.retrieve(answer.id) == answer
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "cut"}
    for more in ([result], []):
        told = respond(
            tiny_server, input=[*more, {"role": "user", "content": "Again."}], previous_response_id=answer.id, **fields
        )
        items = {item.type: item for item in tiny_server.client().responses.input_items.list(told.id)}
        kept = items["function_call"]
        assert kept.type == "function_call"
        assert kept.arguments == call.arguments


def test_cve_2025_46570_only_requests_of_one_salt_share_prompts(tiny_server: RunningServer) -> None:
    text = uuid.uuid4().hex * 4
    salts = [uuid.uuid4().hex, uuid.uuid4().hex]
    cached = [usage(respond(tiny_server, input=text, extra_body={"cache_salt": salts[i]}))[1] for i in (0, 1, 0)]
    assert cached[:2] == [0, 0]
    assert cached[2] > 100


def test_a_conversation_too_long_is_refused_or_loses_its_beginning(tiny_server: RunningServer) -> None:
    def count(messages: list[dict[str, Any]]) -> tuple[int, int]:
        answer = tiny_server.http.post("/tokenize", json={"messages": messages}).json()
        return answer["count"], answer["max_model_len"]

    talk = [{"role": "user", "content": f"{number:3}" * 20} for number in range(50)]
    with pytest.raises(openai.BadRequestError, match="at most"):
        respond(tiny_server, input=talk)
    answer = respond(tiny_server, input=talk, instructions="Stay.", truncation="auto")
    assert answer.truncation == "auto"
    told = [{"role": "developer", "content": "Stay."}, *talk]
    assert usage(respond(tiny_server, input=told, truncation="auto"))[0] == usage(answer)[0]
    stays = {"role": "system", "content": "Stay."}
    lengths = {start: count([stays, *talk[start:]]) for start in range(len(talk))}
    start = next(start for start, (length, limit) in lengths.items() if length + 12 <= limit)
    assert start > 0
    assert usage(answer)[0] == lengths[start][0]
    assert answer.output_text == respond(tiny_server, input=talk[start:], instructions="Stay.").output_text


ALTERNATING_TEMPLATE = """{% for message in messages if message['role'] != 'system' %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}
{{- message['content'] }}
{% endfor %}"""


@pytest.fixture(scope="module")
def alternating_server(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its template takes the user and the assistant by turns only."""
    template = tmp_path_factory.mktemp("template") / "alternating.jinja"
    template.write_text(ALTERNATING_TEMPLATE)
    with running_server(tiny_model, *TINY_FLAGS, "--chat-template", str(template)) as server:
        yield server


@pytest.mark.parametrize(
    ("num_chars", "max_output_tokens"), [(140, 12), (150, 12), (160, 12), (300, 12), (68, 12), (134, 23), (64, 33)]
)
def test_what_is_left_of_a_long_conversation_begins_with_the_user(
    alternating_server: RunningServer, num_chars: int, max_output_tokens: int
) -> None:
    """As much as fits; in the last two cases that is just as much as there is room for."""
    talk = [
        {"role": ("user", "assistant")[number % 2], "content": f"{number:02}" * (num_chars // 2)}
        for number in range(31)
    ]
    fields: dict[str, Any] = {"instructions": "Stay.", "truncation": "auto", "max_output_tokens": max_output_tokens}
    answer = respond(alternating_server, input=talk, **fields)
    room = 2048 - max_output_tokens
    num_kept = max(number for number in range(1, 32, 2) if number * (num_chars + 1) <= room)
    assert usage(answer)[0] == num_kept * (num_chars + 1)


def test_a_result_is_never_left_without_its_call(tiny_server: RunningServer) -> None:
    call = TALK[1] | {"arguments": json.dumps({"city": "Rome" * 450})}
    kept = [{"role": "user", "content": "y" * 80}, *TALK[1:3]]
    answer = respond(tiny_server, input=[TALK[0], call, TALK[2], *kept], truncation="auto")
    assert usage(answer)[0] == usage(respond(tiny_server, input=kept))[0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}}},
            "text.format.schema",
        ),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_what_is_refused_is_named(tiny_server: RunningServer, fields: dict[str, Any], param: str) -> None:
    status, field, message = refusal(tiny_server, **fields)
    assert (status, field) == (400, param)
    assert param.split(".")[-1].removesuffix("[0]") in message or field in message


def test_unknown_models_and_responses_are_404(tiny_server: RunningServer) -> None:
    assert refusal(tiny_server, model="other")[0] == 404
    assert tiny_server.http.get("/v1/responses/none/input_items").status_code == 404


def test_another_method_is_told_which_there_are(tiny_server: RunningServer) -> None:
    answer = tiny_server.http.put("/v1/responses/some")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")


@pytest.fixture(scope="module")
def shared_server(tiny_llama: Path) -> Iterator[RunningServer]:
    """With two keys."""
    flags = ("--executor", "null", "--served-model-name", "tiny", "--api-key", "second")
    with running_server(str(tiny_llama), *flags, api_key="first") as server:
        yield server


def test_nobody_sees_the_responses_of_another_key(shared_server: RunningServer) -> None:
    answer = respond(shared_server)
    assert shared_server.client().responses.retrieve(answer.id).id == answer.id
    other = {"Authorization": "Bearer second"}
    path = f"{shared_server.url}/v1/responses"
    with httpx.Client(trust_env=False, headers=other, timeout=60) as client:
        assert client.get(f"{path}/{answer.id}").status_code == 404
        assert client.delete(f"{path}/{answer.id}").status_code == 404
        going_on = client.post(path, json={"input": "x", "previous_response_id": answer.id})
        assert going_on.json()["error"]["param"] == "previous_response_id"
        assert client.post(path, json={"input": "x", "max_output_tokens": 1}).status_code == 200


def test_several_api_workers_keep_nothing_and_say_so(tiny_llama: Path) -> None:
    flags = ("--executor", "null", "--served-model-name", "tiny", "--api-workers", "2")
    with running_server(str(tiny_llama), *flags) as server:
        answer = server.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 1}).json()
        assert answer["store"] is False
        assert "workers" in server.http.get(f"/v1/responses/{answer['id']}").json()["error"]["message"]
        for fields, param in (
            ({"store": True}, "store"),
            ({"previous_response_id": answer["id"]}, "previous_response_id"),
        ):
            status, field, message = refusal(server, **fields)
            assert (status, field) == (400, param)
            assert "--api-workers 1" in message


@pytest.mark.real
def test_the_real_model_calls_and_is_told_the_result(real_server: RunningServer) -> None:
    client = real_server.client()
    answer = client.responses.create(
        model=real_server.model,
        input="What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
        max_output_tokens=60,
    )
    [call] = answer.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] == "Paris"
    told = client.responses.create(
        model=real_server.model,
        previous_response_id=answer.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 25 degrees."}],
        temperature=0,
        max_output_tokens=24,
    )
    assert "sunny" in told.output_text.lower()
