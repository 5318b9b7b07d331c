"""Writes the answers of /v1/chat/completions, whole or in chunks."""

from __future__ import annotations

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
from quire.server.answering import AnswerWriter
from quire.server.chat_turn import ChatTurn
from quire.server.logprobs import chat_logprobs, prompt_logprobs
from quire.server.outputs import make_usage, new_frame
from quire.server.schemas.answers import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    FunctionCall,
    FunctionCallDelta,
    MessageDelta,
    MessageToolCall,
    ToolCallDelta,
    Usage,
)
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.sse import DONE, event
from quire.server.state import ServerState


class ChatWriter(AnswerWriter):
    """Of all samples of one request."""

    def __init__(self, state: ServerState, body: ChatCompletionRequest, turn: ChatTurn) -> None:
        self._tokenizer = state.llm.tokenizer
        self._body = body
        self._turn = turn
        self._is_plain = not turn.reads_marks
        self._frame = new_frame(state, "chatcmpl")
        self._chunk = ChatChunk(*self._frame, [])
        self._parsers: dict[int, AnswerParser] = {}
        """Of each sample begun."""
        options = body.stream_options
        self._counts_always = bool(options and options.continuous_usage_stats)
        self._counts_at_end = bool(options and options.include_usage)
        self._num_tokens = 0
        self._last: RequestOutput | None = None

    def answer(self, output: RequestOutput) -> ChatCompletion:
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        answer = ChatCompletion(
            *self._frame, [self._whole_choice(sample) for sample in output.outputs], make_usage([output], num_tokens)
        )
        if self._body.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, self._body.prompt_logprobs)
        if self._body.return_token_ids:
            answer.prompt_token_ids = output.prompt_token_ids
        return answer

    def _whole_choice(self, sample: CompletionOutput) -> ChatChoice:
        answer = self._turn.parser().parse_whole(sample.text)
        nothing = "" if self._is_plain else None
        message = AnswerMessage(self._echoed() + (answer.content or "") or nothing)
        if answer.reasoning is not None:
            message.reasoning = message.reasoning_content = answer.reasoning
        if answer.tool_calls:
            message.tool_calls = [
                MessageToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in answer.tool_calls
            ]
        return ChatChoice(
            sample.index,
            message,
            self._logprobs(sample),
            finish_reason(sample.finish_reason, len(answer.tool_calls)),
            sample.stop_reason,
            sample.token_ids if self._body.return_token_ids else UNSET,
        )

    def write(self, output: RequestOutput) -> bytes:
        self._last = output
        chunk = self._chunk
        events: list[bytes] = []
        for sample in output.outputs:
            self._num_tokens += len(sample.token_ids)
            if sample.index not in self._parsers:
                events.append(self._begin(sample.index, output))
            choices = self._choices(sample)
            if not choices:
                continue
            if self._counts_always:
                chunk.usage = self._usage()
            for choice in choices:
                chunk.choices = [choice]
                events.append(event(chunk))
        return events[0] if len(events) == 1 else b"".join(events)

    def end(self) -> bytes:
        if not self._counts_at_end:
            return DONE
        return event(ChatChunk(*self._frame, [], self._usage())) + DONE

    def _begin(self, index: int, output: RequestOutput) -> bytes:
        """The event that opens a sample's message."""
        self._parsers[index] = self._turn.parser()
        chunk = ChatChunk(*self._frame, [ChatChunkChoice(index, MessageDelta("assistant", self._echoed()))])
        if self._counts_at_end or self._counts_always:
            self._chunk.usage = chunk.usage = self._usage() if self._counts_always else None
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

    def _usage(self) -> Usage:
        return make_usage([] if self._last is None else [self._last], self._num_tokens)

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
            call = ToolCallDelta(index, FunctionCallDelta(name, ""), call_id, "function")
            return MessageDelta(tool_calls=[call])
        case ToolCallArguments(index, text):
            return MessageDelta(tool_calls=[ToolCallDelta(index, FunctionCallDelta(arguments=text))])
