"""The chunks of /v1/chat/completions and /v1/completions, one by one: what belongs to which, and what comes last."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.server.test_answer_writers import CALL, NO_TOOLS_TURN, PLAIN_TURN, TOKENIZER, TURN

from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.chat_turn import ChatTurn
from quire.server.chat_writer import ChatWriter
from quire.server.choices_writer import ChoicesWriter
from quire.server.completion_writer import CompletionWriter
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.completions import CompletionRequest

STATE: Any = SimpleNamespace(llm=SimpleNamespace(tokenizer=TOKENIZER), model_name="m")
COUNTED = {"stream_options": {"continuous_usage_stats": True}}


def output(
    text: str, finish_reason: str | None = None, stop_reason: str | None = None, num_cached: int = 4
) -> RequestOutput:
    """Of one token."""
    logprobs: Any = [{ord("x"): Logprob(-1.0, 2, "x"), ord("y"): Logprob(-0.5, 1, "y")}]
    sample = CompletionOutput(0, text, [ord("x")], None, logprobs, finish_reason, stop_reason)
    return RequestOutput("r", "prompt", list(b"prompt"), [sample], False, num_cached_tokens=num_cached)


def chat_writer(turn: ChatTurn = TURN, **fields: Any) -> ChatWriter:
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], **fields})
    return ChatWriter(STATE, body, turn)


def chunks(writer: ChoicesWriter, *made: RequestOutput) -> list[dict[str, Any]]:
    """All of a stream's; it ends as streams do."""
    *events, done, nothing = b"".join([*map(writer.write, made), writer.end()]).decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def whole(writer: ChoicesWriter, *made: RequestOutput) -> Any:
    return json.loads(msgspec.json.encode(writer.answer(made)))


def deltas(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in made]


def test_what_belongs_to_which_chunk_of_a_chat() -> None:
    """A token that makes two of them: its logprobs and its id are told once, with the first; its end with the last."""
    first = output(f"Hm.{CALL}")
    last = output("", "stop", "END")
    made = chunks(chat_writer(logprobs=True, return_token_ids=True), first, last)
    assert deltas(made)[0] == {"role": "assistant", "content": ""}
    assert [sorted(delta) for delta in deltas(made)[1:]] == [["content"], ["tool_calls"], ["tool_calls"], []]
    choices = [chunk["choices"][0] for chunk in made[1:]]
    assert [choice.get("token_ids") for choice in choices] == [[ord("x")], None, None, [ord("x")]]
    assert [choice["logprobs"] is not None for choice in choices] == [True, False, False, True]
    assert choices[0]["logprobs"]["content"][0]["top_logprobs"] == [], "none were asked for"
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "tool_calls"]
    assert choices[-1]["stop_reason"] == "END"
    at_once = [chunk["choices"][0] for chunk in chunks(chat_writer(), output(f"Hm.{CALL}", "stop"))[1:]]
    assert [choice["finish_reason"] for choice in at_once] == [None, None, "tool_calls"]


def test_calls_that_were_cut_are_no_reason_to_end() -> None:
    for writer in (chat_writer(), chat_writer(parallel_tool_calls=False)):
        assert whole(writer, output(CALL, "length"))["choices"][0]["finish_reason"] == "length"
        assert chunks(writer, output(CALL, "length"))[-1]["choices"][0]["finish_reason"] == "length"


def test_what_might_have_become_a_mark_is_said_at_the_end() -> None:
    text = "If a <tool"
    assert whole(chat_writer(), output(text, "stop"))["choices"][0]["message"]["content"] == text
    assert "".join(delta.get("content", "") for delta in deltas(chunks(chat_writer(), output(text, "stop")))) == text


def test_an_answer_of_nothing_is_empty_and_one_of_calls_has_no_text() -> None:
    assert whole(chat_writer(PLAIN_TURN), output("", "stop"))["choices"][0]["message"]["content"] == ""
    assert whole(chat_writer(), output(CALL, "stop"))["choices"][0]["message"]["content"] is None


def test_reasoning_goes_by_both_its_names() -> None:
    text = "<think>Why?</think>So."
    message = whole(chat_writer(NO_TOOLS_TURN), output(text, "stop"))["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("So.", "Why?", "Why?")
    thought = deltas(chunks(chat_writer(NO_TOOLS_TURN), output(text, "stop")))[1]
    assert thought == {"reasoning": "Why?", "reasoning_content": "Why?"}


def test_counts_come_with_each_token_also_where_it_says_nothing_yet() -> None:
    made = chunks(chat_writer(**COUNTED), output("<tool"), output(" kit", "stop"))
    assert [chunk["usage"]["completion_tokens"] for chunk in made] == [1, 1, 2]
    assert deltas(made)[1:] == [{}, {"content": "<tool kit"}]
    made = chunks(chat_writer(PLAIN_TURN), output("a"), output(""), output("", "stop"))
    assert deltas(made) == [{"role": "assistant", "content": ""}, {"content": "a"}, {}], "the end alone is told"
    assert all("usage" not in chunk for chunk in made)


def test_counts_at_the_end_are_of_all_prompts() -> None:
    body = CompletionRequest.model_validate({"prompt": ["a", "b"], "stream_options": {"include_usage": True}})
    writer = CompletionWriter(STATE, body, SamplingParams())
    events = [writer.write(output("a", "stop"), 0), writer.write(output("b", "stop", num_cached=2), 1), writer.end()]
    *made, done, _ = b"".join(events).decode().split("\n\n")
    first, second, last = [json.loads(event.removeprefix("data: ")) for event in made]
    assert done == "data: [DONE]"
    assert first["usage"] is second["usage"] is None
    assert last["choices"] == []
    counts = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}
    assert last["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 6}}
