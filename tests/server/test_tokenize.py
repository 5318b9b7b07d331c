"""/tokenize and /detokenize against a real server process."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.running_server import RunningServer


def post(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = server.http.post(path, json=body).raise_for_status().json()
    return answer


def test_a_text_becomes_tokens_and_comes_back(null_server: RunningServer) -> None:
    text = "Grüße, 世界! 👩‍👩‍👧"
    answer = post(null_server, "/tokenize", prompt=text, return_token_strs=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 8192
    assert post(null_server, "/detokenize", tokens=answer["tokens"])["prompt"] == text
    assert post(null_server, "/tokenize", prompt=text)["token_strs"] is None


def test_a_conversation_is_tokenized_as_a_completion_would_be(null_server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = post(null_server, "/tokenize", messages=messages)
    completion = null_server.client().chat.completions.create(
        model=null_server.model,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=1,
        extra_body={"return_token_ids": True},
    )
    assert (completion.model_extra or {})["prompt_token_ids"] == answer["tokens"]
    assert "<|im_start|>user\nHi" in post(null_server, "/detokenize", tokens=answer["tokens"])["prompt"]
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert post(null_server, "/tokenize", messages=messages, tools=tools)["count"] > answer["count"]
    without = post(null_server, "/tokenize", messages=messages, tools=tools, tool_choice="none")
    assert without["tokens"] == answer["tokens"]
    shorter = post(null_server, "/tokenize", messages=messages, add_generation_prompt=False)
    assert answer["tokens"][: shorter["count"]] == shorter["tokens"]
    assert shorter["count"] < answer["count"]


@pytest.mark.parametrize("tokens", [[-1], [49152], [2**31], [2**63], [2**64], [True], [1.0], ["1"], "1", None])
def test_what_is_no_token_is_refused(null_server: RunningServer, tokens: Any) -> None:
    answer = null_server.http.post("/detokenize", json={"tokens": tokens})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tokens")


@pytest.mark.parametrize("body", [{}, {"prompt": 5}, {"messages": []}, {"messages": "Hi"}, {"prompt": None}])
def test_neither_text_nor_messages_is_refused(null_server: RunningServer, body: dict[str, Any]) -> None:
    answer = null_server.http.post("/tokenize", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("prompt", "messages")


def test_a_broken_tail_of_bytes_is_shown_as_such(null_server: RunningServer) -> None:
    tokens = post(null_server, "/tokenize", prompt="👩")["tokens"]
    assert post(null_server, "/detokenize", tokens=tokens[:-1])["prompt"] in (
        "\ufffd",
        "\ufffd\ufffd",
        "\ufffd\ufffd\ufffd",
    )
