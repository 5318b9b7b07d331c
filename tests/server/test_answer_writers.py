"""The events of /v1/responses and /v1/messages, read back by the official clients' own code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.server.test_answer_parser import TEXT, tokenizer_with
from tests.server.test_outputs import request_that_stays

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.errors import EngineDeadError
from quire.server.answer_parser import AnswerFormat
from quire.server.answering import write_events
from quire.server.block_writer import BlockWriter
from quire.server.chat_turn import ChatTurn, Conversation
from quire.server.message_writer import MessageWriter
from quire.server.reasoning.registry import REASONING_STYLES
from quire.server.response_writer import ResponseWriter
from quire.server.schemas.response_answers import ResponseAnswer
from quire.server.sse import EventStream
from quire.server.tools.definitions import ToolChoice, parse_tools
from quire.server.tools.registry import TOOL_FORMATS

TOKENIZER = tokenizer_with({})
TOOLS = parse_tools([{"type": "function", "name": "now"}, {"type": "function", "name": "f-1"}])
TURN = ChatTurn(
    "prompt",
    list(b"prompt"),
    Conversation(messages=[], tools=TOOLS, choice=ToolChoice("auto")),
    AnswerFormat(TOOL_FORMATS["hermes"], REASONING_STYLES["think"]),
)
NO_TOOLS_TURN = ChatTurn("prompt", list(b"prompt"), Conversation(messages=[]), TURN.answer_format)
PLAIN_TURN = ChatTurn("prompt", list(b"prompt"), Conversation(messages=[]), AnswerFormat(None, None))
TWO_CALLS = TEXT + '\n<tool_call>\n{"name": "f-1", "arguments": {}}\n</tool_call>\n'
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SAID_TOO = f"<think>\nWhy?\n</think>\n\nBecause.\n\n{CALL}"
ANSWERS = ["", " \n", "Plain text.", "\n\n Plain", TEXT, TWO_CALLS, SAID_TOO]

RESPONSE_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def outputs(pieces: Sequence[str], finish_reason: str = "stop", stop_reason: str | None = None) -> list[RequestOutput]:
    """One output a piece, a token each, then one with the end, which has two."""
    samples = [CompletionOutput(0, piece, [1]) for piece in pieces]
    samples.append(CompletionOutput(0, "", [2, 3], finish_reason=finish_reason, stop_reason=stop_reason))
    return [
        RequestOutput("r", "prompt", list(b"prompt"), [sample], sample.finished(), num_cached_tokens=4)
        for sample in samples
    ]


def response_writer(kept: list[ResponseAnswer] | None = None, turn: ChatTurn = TURN) -> ResponseWriter:
    answer = ResponseAnswer(
        id="resp_1",
        created_at=1,
        model="m",
        instructions=None,
        max_output_tokens=None,
        metadata={},
        parallel_tool_calls=True,
        previous_response_id=None,
        reasoning={},
        store=True,
        temperature=1.0,
        text={"format": {"type": "text"}},
        tool_choice="auto",
        tools=[],
        top_p=1.0,
        truncation="disabled",
        user=None,
    )
    return ResponseWriter(TOKENIZER, turn, answer, (kept if kept is not None else []).append)


def message_writer(max_tokens: int = 10_000) -> MessageWriter:
    return MessageWriter(TURN, "m", max_tokens)


def events_of(writer: BlockWriter, made: Sequence[RequestOutput]) -> list[dict[str, Any]]:
    """The data of the server-sent events, whose names are checked."""
    events = []
    for block in b"".join(writer.write(output) for output in made).decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(inner) for key, inner in value.items() if key not in ("id", "call_id")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def contents(response: Response) -> list[tuple[str, str]]:
    """Types and texts of the output."""
    found = []
    for item in response.output:
        match item.type:
            case "message":
                found.append(("message", "".join(getattr(part, "text", "") for part in item.content)))
            case "reasoning":
                found.append(("reasoning", "".join(part.text for part in item.content or [])))
            case "function_call":
                found.append((item.name, item.arguments))
    return found


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("text", ANSWERS)
def test_response_events_are_what_openai_reads(text: str, finish_reason: str) -> None:
    events = events_of(response_writer(), outputs(list(text), finish_reason))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    typed = [RESPONSE_EVENT.validate_python(event) for event in events]
    for event in typed:
        state.handle_event(event)
    last = typed[-1]
    assert last.type == ("response.completed" if finish_reason == "stop" else "response.incomplete")
    snapshot = contents(state._ResponseStreamState__current_snapshot)
    # openai's own snapshot has no place for reasoning.
    thoughts = "".join(event.delta for event in typed if event.type == "response.reasoning_text.delta")
    assert contents(last.response) == [
        (kind, thoughts if kind == "reasoning" else content) for kind, content in snapshot
    ]
    whole = response_writer()
    whole.write(outputs([text], finish_reason)[0])
    whole.write(outputs([text], finish_reason)[1])
    streamed_items = last.response.model_dump(exclude_unset=True)["output"]
    assert without_ids(streamed_items) == without_ids(json.loads(encode(whole))["output"])


def encode(writer: BlockWriter) -> bytes:
    return msgspec.json.encode(writer.whole)


def test_the_order_of_response_events() -> None:
    types = [event["type"].removeprefix("response.") for event in events_of(response_writer(), outputs([SAID_TOO]))]
    item = ["output_item.added", "content_part.added"]
    assert types == [
        *("created", "in_progress"),
        *(*item, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *(*item, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_the_order_of_message_events() -> None:
    events = events_of(message_writer(), outputs([SAID_TOO]))
    types = [event["type"].removeprefix("content_block_") for event in events]
    assert types == [
        *("message_start", "ping"),
        *("start", "delta", "delta", "stop", "start", "delta", "stop", "start", "delta", "stop"),
        *("message_delta", "message_stop"),
    ]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]


@pytest.mark.parametrize(
    ("turn", "text", "blocks"),
    [
        (TURN, " \n", []),
        (TURN, "\n\n Plain", [("message", "\n\n Plain")]),
        (TURN, SAID_TOO, [("reasoning", "Why?"), ("message", "Because.\n\n"), ("now", "{}")]),
        (TURN, f"\nSo.{CALL}\n{CALL}\nAnd.", [("message", "\nSo."), *[("now", "{}")] * 2, ("message", "\nAnd.")]),
        (NO_TOOLS_TURN, "", []),
        (NO_TOOLS_TURN, "\n \nPlain", [("message", "\n \nPlain")]),
        (NO_TOOLS_TURN, "<think>Why?</think> ", [("reasoning", "Why?")]),
        (NO_TOOLS_TURN, "<think>Why?</think> So.", [("reasoning", "Why?"), ("message", " So.")]),
    ],
)
def test_space_alone_makes_no_block_and_is_said_once(turn: ChatTurn, text: str, blocks: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        last = RESPONSE_EVENT.validate_python(events_of(response_writer(turn=turn), outputs(pieces))[-1])
        assert last.type == "response.completed"
        assert contents(last.response) == blocks


@pytest.mark.parametrize(
    ("text", "finish_reason", "statuses"),
    [
        ("<think>Why?</think>Be", "stop", ["completed", "completed"]),
        ("<think>Why?</think>Be", "length", ["completed", "incomplete"]),
        ("<think>Why?</think> ", "length", ["completed"]),
        ("<think>Wh", "length", ["incomplete"]),
    ],
)
def test_what_was_cut_is_incomplete(text: str, finish_reason: str, statuses: list[str]) -> None:
    writer = response_writer(turn=NO_TOOLS_TURN)
    events_of(writer, outputs([text], finish_reason))
    assert [item["status"] for item in json.loads(encode(writer))["output"]] == statuses
    assert (writer.whole.completed_at is None) == (finish_reason == "length")


def test_a_response_counts_its_tokens_and_is_kept_once_whole() -> None:
    kept: list[ResponseAnswer] = []
    writer = response_writer(kept)
    made = outputs(list(SAID_TOO))
    events_of(writer, made[:-1])
    assert kept == []
    events_of(writer, made[-1:])
    assert kept == [writer.whole]
    usage = writer.whole.usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (6, 4)
    assert (usage.output_tokens, usage.total_tokens) == (len(SAID_TOO) + 2, len(SAID_TOO) + 8)
    assert usage.output_tokens_details.reasoning_tokens == len("Why?")


def test_an_answer_cut_anywhere_closes_what_it_opened() -> None:
    for end in range(len(TWO_CALLS)):
        events = events_of(response_writer(), outputs(list(TWO_CALLS[:end]), "length"))
        opened = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
        assert opened == [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
        statuses = [item["status"] for item in events[-1]["response"]["output"]]
        assert set(statuses[:-1]) <= {"completed"}
        assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("text", ANSWERS)
def test_message_events_are_what_anthropic_reads(text: str) -> None:
    events = events_of(message_writer(), outputs(list(text)))
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] != "ping":
            typed = MESSAGE_EVENT.validate_python(event)
            snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    whole = message_writer()
    for output in outputs([text]):
        whole.write(output)
    message = Message.model_validate_json(encode(whole), strict=True)
    streamed = Message.model_validate(snapshot.to_dict())
    assert without_ids(message.to_dict()["content"]) == without_ids(streamed.to_dict()["content"])
    assert message.stop_reason == streamed.stop_reason == ("tool_use" if "tool_call>\n{" in text else "end_turn")
    assert streamed.usage.output_tokens == len(text) + 2
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (2, 4)


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "max_tokens", "expected"),
    [
        ("stop", None, 100, ("end_turn", None)),
        ("stop", "END", 100, ("stop_sequence", "END")),
        ("stop", 7, 100, ("end_turn", None)),
        ("length", None, 3, ("max_tokens", None)),
        ("length", None, 100, ("model_context_window_exceeded", None)),
    ],
)
def test_why_a_message_stopped(
    finish_reason: str, stop_reason: Any, max_tokens: int, expected: tuple[str, str | None]
) -> None:
    writer = message_writer(max_tokens)
    events_of(writer, outputs(["text"], finish_reason, stop_reason))
    assert (writer.whole.stop_reason, writer.whole.stop_sequence) == expected


def test_arguments_cut_short_are_read_as_far_as_they_go() -> None:
    writer = message_writer()
    events_of(writer, outputs(['<tool_call>\n{"name": "now", "arguments": {"a": 1, "b": [2, '], "length"))
    [block] = json.loads(encode(writer))["content"]
    assert block["input"] == {"a": 1, "b": [2]}


async def _then_dies(made: Sequence[RequestOutput]) -> AsyncGenerator[RequestOutput, None]:
    for output in made:
        yield output
    raise EngineDeadError("The engine stopped.")


async def _collect(writer: BlockWriter, made: Sequence[RequestOutput]) -> list[bytes]:
    request = request_that_stays()
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    response = await EventStream(write_events(writer, [_then_dies(made)]), fail=writer.fail).begin(request)
    await response(request.scope, request.receive, send)
    return [chunk for chunk in sent if chunk]


def test_what_fails_on_the_way_is_the_last_event() -> None:
    made = outputs(["some", " text"])[:-1]
    name, data = asyncio.run(_collect(response_writer(), made))[-1].decode().split("\n")[:2]
    failed = RESPONSE_EVENT.validate_json(data.removeprefix("data: "))
    assert name == "event: response.failed"
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error is not None
    assert failed.response.error.message == "The engine stopped."
    assert contents(failed.response) == [("message", "")]
    name, data = asyncio.run(_collect(message_writer(), made))[-1].decode().split("\n")[:2]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "The engine stopped."},
    }


def test_what_fails_at_first_has_a_status_of_its_own() -> None:
    for writer in (response_writer(), message_writer()):
        with pytest.raises(EngineDeadError):
            asyncio.run(_collect(writer, []))
