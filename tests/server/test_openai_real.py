"""The official client and the real SmolLM2: what people would do first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel
from tests.server.running_server import RunningServer

pytestmark = pytest.mark.real

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "capital",
        "description": "Look up the capital of a country.",
        "parameters": {
            "type": "object",
            "properties": {"country": {"type": "string", "maxLength": 20}},
            "required": ["country"],
            "additionalProperties": False,
        },
    },
}


def test_chat_streams_what_it_says_whole(real_server: RunningServer) -> None:
    client = real_server.client()
    fields: dict[str, Any] = {"model": real_server.model, "messages": QUESTION, "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**fields).choices[0]
    assert "Paris" in (whole.message.content or "")
    assert whole.finish_reason == "stop"
    parts = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(c.delta.content or "" for part in parts for c in part.choices) == whole.message.content


def test_many_async_clients_get_what_each_would_get_alone(real_server: RunningServer) -> None:
    prompts = [f"Count from {number} to ten:" for number in ("one", "two", "three", "four", "five", "six")]
    fields: dict[str, Any] = {"model": real_server.model, "temperature": 0, "max_tokens": 12}

    async def together() -> list[str]:
        async with real_server.async_client() as client:
            answers = await asyncio.gather(*(client.completions.create(prompt=p, **fields) for p in prompts))
            return [answer.choices[0].text for answer in answers]

    alone = [real_server.client().completions.create(prompt=p, **fields).choices[0].text for p in prompts]
    assert asyncio.run(together()) == alone


def test_structured_answers_parse(real_server: RunningServer) -> None:
    class Capital(BaseModel):
        country: str
        in_europe: bool

    answer = real_server.client().chat.completions.parse(
        model=real_server.model, messages=QUESTION, response_format=Capital, temperature=0, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)


def test_a_demanded_tool_is_called(real_server: RunningServer) -> None:
    choice = (
        real_server.client()
        .chat.completions.create(
            model=real_server.model,
            messages=QUESTION,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=80,
        )
        .choices[0]
    )
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or ()
    assert call.type == "function"
    assert list(json.loads(call.function.arguments)) == ["country"]
