"""Writes the answers of /v1/chat/completions, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.answer_events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from quire.server.answer_parser import AnswerParser
from quire.server.chat_turn import ChatTurn
from quire.server.choices_writer import ChoicesWriter, new_frame
from quire.server.logprobs import chat_logprobs, prompt_logprobs
from quire.server.schemas.answers import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    FunctionCall,
    MessageDelta,
    MessageToolCall,
)
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.sse import event
from quire.server.state import ServerState


class ChatWriter(ChoicesWriter):
    _chunk: ChatChunk

    def __init__(self, state: ServerState, body: ChatCompletionRequest, turn: ChatTurn) -> None:
        self._frame = new_frame(state, "chatcmpl")
        super().__init__(state, body, ChatChunk(*self._frame, []))
        self._body = body
        self._turn = turn
        self._is_plain = not turn.reads_marks
        self._parsers: dict[int, AnswerParser] = {}
        """Of each sample begun."""

    def answer(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        (output,) = outputs
        self._outputs[0] = output
        self._num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        answer = ChatCompletion(*self._frame, [self._whole_choice(sample) for sample in output.outputs], self._usage())
        if self._body.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._body.prompt_logprobs)
        if self._body.return_token_ids:
            answer.prompt_token_ids = output.prompt_token_ids
        return answer

    def _whole_choice(self, sample: CompletionOutput) -> ChatChoice:
        content, reasoning, calls = [self._echoed()], list[str](), list[MessageToolCall]()
        for part in self._turn.parser().read(sample.text, ends=True):
            match part:
                case ContentDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case ToolCallStart(id=call_id, name=name):
                    calls.append(MessageToolCall(call_id, FunctionCall(name, "")))
                case ToolCallArguments(index, text):
                    calls[index].function.arguments += text
        message = AnswerMessage("".join(content) or ("" if self._is_plain else None))
        if reasoning:
            message.reasoning = message.reasoning_content = "".join(reasoning)
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            sample.index,
            message,
            self._logprobs(sample),
            finish_reason(sample.finish_reason, len(calls)),
            sample.stop_reason,
            sample.token_ids if self._body.return_token_ids else UNSET,
        )

    def write(self, output: RequestOutput, number: int = 0) -> bytes:
        chunk = self._chunk
        self._outputs[number] = output
        events: list[bytes] = []
        for sample in output.outputs:
            self._num_tokens += len(sample.token_ids)
            if sample.index not in self._parsers:
                events.append(self._begin(sample.index, output))
            choices = self._choices(sample)
            if self._counts_always:
                chunk.usage = self._usage()
            for choice in choices:
                chunk.choices = [choice]
                events.append(event(chunk))
        return events[0] if len(events) == 1 else b"".join(events)

    def _begin(self, index: int, output: RequestOutput) -> bytes:
        """The event that opens a sample's message."""
        self._parsers[index] = self._turn.parser()
        choice = ChatChunkChoice(index, MessageDelta("assistant", self._echoed()))
        chunk = msgspec.structs.replace(self._chunk, choices=[choice])
        if self._counts_always:
            chunk.usage = self._usage()
        if self._body.return_token_ids:
            chunk.prompt_token_ids = output.prompt_token_ids
        return event(chunk)

    def _choices(self, sample: CompletionOutput) -> list[ChatChunkChoice]:
        """What a sample's new tokens come to. Logprobs and ids go with the first, the finish reason with the last."""
        parser = self._parsers[sample.index]
        if self._is_plain:
            # Not through the parser: most streams pass here, once a token.
            deltas = [MessageDelta(content=sample.text)] if sample.text else []
        else:
            deltas = [_delta(part) for part in parser.read(sample.text, ends=sample.finish_reason is not None)]
        has_more = self._body.logprobs or self._body.return_token_ids or self._counts_always
        if not deltas and (sample.finish_reason is not None or has_more):
            deltas = [MessageDelta()]
        choices = [ChatChunkChoice(sample.index, delta) for delta in deltas]
        if choices:
            if self._body.logprobs:
                choices[0].logprobs = self._logprobs(sample)
            if self._body.return_token_ids:
                choices[0].token_ids = sample.token_ids
            if sample.finish_reason is not None:
                choices[-1].finish_reason = finish_reason(sample.finish_reason, parser.num_tool_calls)
                choices[-1].stop_reason = sample.stop_reason
        return choices

    def _logprobs(self, sample: CompletionOutput) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(self._tokenizer, sample.logprobs or (), self._body.top_logprobs or 0)

    def _echoed(self) -> str:
        """What the answer goes on with, where the request wants it whole."""
        return self._turn.continued if self._body.echo else ""


def finish_reason(reason: str | None, num_calls: int) -> str | None:
    return "tool_calls" if reason == "stop" and num_calls else reason


def _delta(part: Event) -> MessageDelta:
    match part:
        case ContentDelta(text):
            return MessageDelta(content=text)
        case ReasoningDelta(text):
            return MessageDelta(reasoning=text, reasoning_content=text)
        case ToolCallStart(index, call_id, name):
            call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return MessageDelta(tool_calls=[call])
        case ToolCallArguments(index, text):
            return MessageDelta(tool_calls=[{"index": index, "function": {"arguments": text}}])
