"""What applications built on the official clients do beyond a plain request: send answers back, shorten what is too long, offer tools beside a
shape, and name things as other servers do."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from tests.server.running_server import RunningServer

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}},
    },
}
FLAT_TOOL = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
SHAPE = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
USER = {"role": "user", "content": "Hi"}
LONG = "word " * 3000
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    limit = {CHAT: "max_completion_tokens", RESPONSES: "max_output_tokens"}.get(path, "max_tokens")
    return server.http.post(path, json={limit: 200, "temperature": 0} | body)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}], ids=str)
def test_an_answer_without_text_can_be_sent_back(tiny_server: RunningServer, content: dict[str, Any]) -> None:
    """As one that was all reasoning is."""
    answer = post(tiny_server, CHAT, messages=[USER, {"role": "assistant", **content}, USER])
    assert answer.status_code == 200, answer.text


def test_reasoning_that_was_cut_can_be_gone_on_from(thinking_server: RunningServer) -> None:
    items = [USER, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}, USER]
    assert post(thinking_server, RESPONSES, input=items).status_code == 200
    blocks = [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}]}, USER]
    assert post(thinking_server, MESSAGES, messages=blocks).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (RESPONSES, {"input": LONG}, "input"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt[1]"),
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_its_code(
    tiny_server: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    error = post(tiny_server, path, **body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    # The words that LangChain and LiteLLM look for.
    assert "This model's maximum context length is" in error["message"]
    assert "prompt is too long" in error["message"]


def test_anthropics_clients_know_it_by_its_words(tiny_server: RunningServer) -> None:
    answer = post(tiny_server, MESSAGES, messages=[{"role": "user", "content": LONG}])
    assert answer.status_code == 400
    assert "prompt is too long" in answer.json()["error"]["message"]


def test_a_call_that_must_be_made_comes_before_the_shape_of_the_text(tiny_server: RunningServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SHAPE}}
    chat = post(tiny_server, CHAT, messages=[USER], tools=[TOOL], tool_choice="required", response_format=form)
    (call,) = chat.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    text = {"format": {"type": "json_schema", "name": "s", "schema": SHAPE}}
    made = post(tiny_server, RESPONSES, input="Hi", tools=[FLAT_TOOL], tool_choice="required", text=text)
    assert [item["type"] for item in made.json()["output"]] == ["function_call"]


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
def test_a_model_that_may_call_calls_or_fits_the_shape(tiny_server: RunningServer, kind: str) -> None:
    form: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        form["json_schema"] = {"name": "s", "schema": SHAPE}
    kinds = set()
    for seed in range(12):
        fields = {
            "tools": [TOOL],
            "response_format": form,
            "temperature": 1,
            "seed": seed,
            "max_completion_tokens": 200,
        }
        (choice,) = post(tiny_server, CHAT, messages=[USER], **fields).json()["choices"]
        message = choice["message"]
        kinds.add("call" if message.get("tool_calls") else "text")
        if choice["finish_reason"] == "length":
            continue
        if message.get("tool_calls"):
            assert message["content"] is None
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]).keys() <= {"city"}
        else:
            value = json.loads(message["content"])
            assert isinstance(value, dict)
            assert kind == "json_object" or isinstance(value["done"], bool)
    assert kinds == {"call", "text"}


def test_tools_that_only_openai_runs_are_left_out(tiny_server: RunningServer) -> None:
    """As coding agents send them beside functions."""
    others = [{"type": "web_search"}, {"type": "custom", "name": "patch", "format": {"type": "text"}}]
    answer = post(tiny_server, RESPONSES, input="Hi", tools=[*others, FLAT_TOOL]).json()
    assert [tool["name"] for tool in answer["tools"]] == ["get_weather"]
    assert (
        answer["usage"]["input_tokens"]
        == (post(tiny_server, RESPONSES, input="Hi", tools=[FLAT_TOOL]).json()["usage"]["input_tokens"])
    )
    refused = post(tiny_server, RESPONSES, input="Hi", tools=others, tool_choice={"type": "web_search"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_only_allowed_tools_may_be_called(tiny_server: RunningServer) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = post(tiny_server, CHAT, messages=[USER], tools=[TOOL, other], tool_choice=choice).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "other"
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    made = post(tiny_server, RESPONSES, input="Hi", tools=[FLAT_TOOL], tool_choice=flat).json()
    assert made["output"][0]["name"] == "get_weather"


def test_items_can_be_referred_to(tiny_server: RunningServer) -> None:
    first = post(tiny_server, RESPONSES, input="Hello there").json()
    item = first["output"][0]
    question = {"role": "user", "content": "Go on"}
    by_id = post(tiny_server, RESPONSES, input=[USER, {"type": "item_reference", "id": item["id"]}, question]).json()
    in_full = post(tiny_server, RESPONSES, input=[USER, item, question]).json()
    assert by_id["usage"]["input_tokens"] == in_full["usage"]["input_tokens"]
    assert by_id["output"][0]["content"] == in_full["output"][0]["content"]
    refused = post(tiny_server, RESPONSES, input=[{"type": "item_reference", "id": "msg_none"}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.0")


def test_tokens_of_a_response_are_counted_beforehand(tiny_server: RunningServer) -> None:
    body = {"input": "Hi there", "instructions": "Be brief.", "tools": [FLAT_TOOL]}
    counted = post(tiny_server, f"{RESPONSES}/input_tokens", **body).json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == post(tiny_server, RESPONSES, **body).json()["usage"]["input_tokens"]


def test_the_older_name_of_a_message_format(tiny_server: RunningServer) -> None:
    form = {"type": "json_schema", "schema": SHAPE}
    answer = post(tiny_server, MESSAGES, messages=[USER], output_format=form, max_tokens=40).json()
    assert isinstance(json.loads(answer["content"][0]["text"])["done"], bool)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [TOOL["function"]]}, "functions"),
        ({"function_call": {"name": "get_weather"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy"}}, "audio"),
    ],
)
def test_what_would_be_ignored_is_refused(tiny_server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = post(tiny_server, CHAT, messages=[USER], **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert post(tiny_server, CHAT, messages=[USER], modalities=["text"]).status_code == 200


def test_the_best_of_as_many_as_are_wanted_asks_for_nothing(tiny_server: RunningServer) -> None:
    assert len(post(tiny_server, "/v1/completions", prompt="Hi", n=2, best_of=2, temperature=1).json()["choices"]) == 2
    assert post(tiny_server, "/v1/completions", prompt="Hi", n=2, best_of=3).json()["error"]["param"] == "best_of"


def test_every_answer_has_a_request_id(tiny_server: RunningServer) -> None:
    chat = [post(tiny_server, CHAT, messages=[USER]).headers for _ in range(2)]
    ids = [headers["x-request-id"] for headers in chat]
    assert ids[0] != ids[1]
    assert "request-id" not in chat[0]
    assert post(tiny_server, CHAT, messages=[]).headers["x-request-id"]
    assert post(tiny_server, CHAT, messages=[USER], request_id="mine").headers["x-request-id"] == "mine"
    assert f"client_id={ids[0]}" in tiny_server.log()
    empty = tiny_server.http.post(CHAT, json={"messages": [USER], "max_tokens": 1}, headers={"X-Request-Id": ""})
    assert empty.headers["x-request-id"]
    assert f"client_id={empty.headers['x-request-id']}" in tiny_server.log()
    both = {"messages": [USER], "max_tokens": 1, "request_id": "body"}
    assert tiny_server.http.post(CHAT, json=both, headers={"X-Request-Id": "head"}).headers["x-request-id"] == "head"
    message = post(tiny_server, MESSAGES, messages=[USER]).headers
    assert message["request-id"] == message["x-request-id"]


def test_unknown_models_have_a_code(tiny_server: RunningServer) -> None:
    asked = post(tiny_server, CHAT, messages=[USER], model="other")
    for answer in (asked, tiny_server.http.get("/v1/models/other")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_packed_body_is_refused_by_its_encoding(tiny_server: RunningServer) -> None:
    body = gzip.compress(json.dumps({"messages": [USER]}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = tiny_server.http.post(CHAT, content=body, headers=headers)
    assert answer.status_code == 415
    assert "'gzip'" in answer.json()["error"]["message"]


def test_a_wrong_path_or_method_is_answered_in_a_sentence(tiny_server: RunningServer) -> None:
    """Such as that of a client whose address lacks the /v1."""
    nowhere = tiny_server.http.post("/chat/completions", json={})
    message = "There is nothing at this path; GET /openapi.json lists what there is."
    assert (nowhere.status_code, nowhere.json()["error"]["message"]) == (404, message)
    assert "/v1/chat/completions" in tiny_server.http.get("/openapi.json").json()["paths"]
    got = tiny_server.http.get("/v1/chat/completions")
    assert (got.status_code, got.json()["error"]["message"]) == (405, "This path takes POST only.")


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/ping", "/version"])
def test_monitors_may_ask_with_head(tiny_server: RunningServer, path: str) -> None:
    head = tiny_server.http.head(path)
    got = tiny_server.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.content))
    posted = tiny_server.http.post(path)
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")


def test_other_paths_take_head_no_more_than_they_say(tiny_server: RunningServer) -> None:
    for path, allowed in (("/v1/models", "GET"), (CHAT, "POST")):
        answer = tiny_server.http.head(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
