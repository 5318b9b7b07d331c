"""What the APIs whose answers are blocks (responses, messages) share: one sample, read once, written as their events."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import Request, Response

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from quire.server.chat_turn import ChatTurn
from quire.server.outputs import collect, whole_output_kind
from quire.server.schemas.sampling import GenerationFields, sampling_values, structure_named
from quire.server.serving import generate, json_response, origin_of, prompt_named, unless_client_leaves
from quire.server.sse import EventStream
from quire.server.state import server_state


class BlockKind(enum.Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


class AnswerWriter(ABC):
    """Writes an answer as events, and keeps the whole of it. Blocks follow each other; the last one may be open.

    White space alone makes no block: models put it between reasoning, text and calls.
    """

    def __init__(self, tokenizer: Tokenizer, turn: ChatTurn) -> None:
        self._tokenizer = tokenizer
        self._parser = turn.parser() if turn.reads_marks else None
        self._events: list[bytes] = []
        self._open: BlockKind | None = None
        self._space = ""
        """Read where no text block is open; it belongs to one if visible text follows."""
        self._reasoning: list[str] = []
        self.first: RequestOutput | None = None
        """Has the prompt's counts; None before the first output."""
        self.num_tokens = 0

    @property
    def num_calls(self) -> int:
        return 0 if self._parser is None else self._parser.num_tool_calls

    @property
    def num_reasoning_tokens(self) -> int:
        """Counted from the text: which tokens made it is not known."""
        return len(self._tokenizer.encode("".join(self._reasoning), add_special_tokens=False))

    def write(self, output: RequestOutput) -> bytes:
        """The events that an output makes."""
        (sample,) = output.outputs
        if self.first is None:
            self.first = output
            self.begin()
        self.num_tokens += len(sample.token_ids)
        for part in self._read(sample):
            self._put(part)
        if sample.finish_reason is not None:
            self._close(is_complete=sample.finish_reason != "length")
            self.end(sample)
        events, self._events = self._events, []
        return b"".join(events)

    def _read(self, sample: CompletionOutput) -> list[Event]:
        if self._parser is None:
            return [ContentDelta(sample.text)] if sample.text else []
        events = self._parser.feed(sample.text)
        return events if sample.finish_reason is None else [*events, *self._parser.finish()]

    def _put(self, part: Event) -> None:
        match part:
            case ToolCallStart():
                self._close()
                self._open = BlockKind.CALL
                self.open_block(BlockKind.CALL, part)
            case ToolCallArguments(text=text):
                self.extend_block(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
                self._put_text(BlockKind.REASONING, text)
            case ContentDelta(text):
                self._put_text(BlockKind.TEXT, text)

    def _put_text(self, kind: BlockKind, text: str) -> None:
        if self._open is not kind:
            self._close()
            text = self._space + text
            if text.isspace():
                self._space = text
                return
            self._open = kind
            self.open_block(kind, None)
        self.extend_block(text)

    def _close(self, *, is_complete: bool = True) -> None:
        if self._open is not None:
            self.close_block(is_complete=is_complete)
            self._open, self._space = None, ""

    def fail(self, error: Exception) -> bytes:
        """The last events of an answer that failed on the way."""
        self._events.clear()
        self.report(error)
        return b"".join(self._events)

    @abstractmethod
    def begin(self) -> None:
        """The answer has begun."""

    @abstractmethod
    def open_block(self, kind: BlockKind, call: ToolCallStart | None) -> None: ...

    @abstractmethod
    def extend_block(self, text: str) -> None:
        """More of the open block: text, reasoning, or JSON of a call's arguments."""

    @abstractmethod
    def close_block(self, *, is_complete: bool) -> None: ...

    @abstractmethod
    def end(self, sample: CompletionOutput) -> None:
        """The answer is whole; no block is open."""

    @abstractmethod
    def report(self, error: Exception) -> None: ...

    @abstractmethod
    def whole(self) -> msgspec.Struct:
        """The answer, once it is whole."""


def whole_answer_params(
    body: GenerationFields,
    request: Request,
    turn: ChatTurn,
    *,
    max_tokens: int | None,
    stop: list[str] | None = None,
    structure: StructuredOutputs | None,
) -> SamplingParams:
    """Raises InvalidRequestError."""
    return SamplingParams(
        **sampling_values(body),
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        structured_outputs=structure,
        output_kind=whole_output_kind(server_state(request), body.stream),
        skip_special_tokens=not turn.shows_special_tokens,
    )


async def respond(
    request: Request,
    body: GenerationFields,
    turn: ChatTurn,
    params: SamplingParams,
    writer: AnswerWriter,
    *,
    user: str | None,
    prompt_field: str,
    structure_field: str | None,
) -> Response:
    """Runs the turn and answers it, whole or in events. `prompt_field` and `structure_field`: where the request has the conversation, and
    asks for a structure."""
    origin = origin_of(request, "chat", stream=bool(body.stream), user=user, request_id=body.request_id)
    outputs = generate(server_state(request), origin, turn.prompt, params, body)
    with structure_named(structure_field), prompt_named(prompt_field, of_several=False):
        if body.stream:
            return await EventStream.begin(request, write_events(writer, outputs), body.answer_headers)
        writer.write(await unless_client_leaves(request.receive, collect(outputs)))
    return json_response(writer.whole(), body.answer_headers)


async def write_events(
    writer: AnswerWriter, outputs: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[bytes, None]:
    """What fails before the first event is raised, what fails later is the last event."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                events = writer.write(output)
                if events:
                    yield events
    except Exception as error:
        if writer.first is None:
            raise
        yield writer.fail(error)
