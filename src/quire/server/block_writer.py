"""What the APIs whose answers are blocks (responses, messages) share: one sample, read once, written as their events."""

from __future__ import annotations

import enum
from abc import abstractmethod

import msgspec

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.engine.tokenizer import Tokenizer
from quire.server.answer_events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from quire.server.answering import AnswerWriter
from quire.server.chat_turn import ChatTurn


class BlockKind(enum.Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


class BlockWriter(AnswerWriter):
    """Writes an answer as events, and keeps the whole of it. Blocks follow each other; the last one may be open.

    White space alone makes no block: models put it between reasoning, text and calls.
    """

    def __init__(self, tokenizer: Tokenizer, turn: ChatTurn) -> None:
        self._tokenizer = tokenizer
        self._parser = turn.parser()
        self._events: list[bytes] = []
        self._open: BlockKind | None = None
        self._texts: list[str] = []
        """Of the open block."""
        self._space = ""
        """Read where no text block is open; it belongs to one if visible text follows."""
        self._reasoning: list[str] = []
        self.first: RequestOutput | None = None
        """Has the prompt's counts; None before the first output."""
        self.num_tokens = 0

    @property
    def num_calls(self) -> int:
        return self._parser.num_tool_calls

    @property
    def num_reasoning_tokens(self) -> int:
        """Counted from the text: which tokens made it is not known."""
        return len(self._tokenizer.encode("".join(self._reasoning), add_special_tokens=False))

    def answer(self, output: RequestOutput) -> msgspec.Struct:
        self.write(output)
        return self.whole()

    def write(self, output: RequestOutput) -> bytes:
        (sample,) = output.outputs
        if self.first is None:
            self.first = output
            self.begin()
        self.num_tokens += len(sample.token_ids)
        for part in self._parser.read(sample.text, ends=sample.finish_reason is not None):
            self._put(part)
        if sample.finish_reason is not None:
            self._close(is_complete=sample.finish_reason != "length")
            self.finish(sample)
        events, self._events = self._events, []
        return b"".join(events)

    def _put(self, part: Event) -> None:
        match part:
            case ToolCallStart():
                self._close()
                self._begin_block(BlockKind.CALL, part)
            case ToolCallArguments(text=text):
                self._extend(text)
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
            self._begin_block(kind)
        self._extend(text)

    def _begin_block(self, kind: BlockKind, call: ToolCallStart | None = None) -> None:
        self._open = kind
        self._texts.clear()
        self.open_block(kind, call)

    def _extend(self, text: str) -> None:
        self._texts.append(text)
        self.extend_block(text)

    def _close(self, *, is_complete: bool = True) -> None:
        if self._open is not None:
            self.close_block("".join(self._texts), is_complete=is_complete)
            self._open, self._space = None, ""

    def fail(self, error: Exception) -> bytes:
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
    def close_block(self, text: str, *, is_complete: bool) -> None:
        """`text`: all of the block's."""

    @abstractmethod
    def finish(self, sample: CompletionOutput) -> None:
        """The answer is whole; no block is open."""

    @abstractmethod
    def report(self, error: Exception) -> None: ...

    @abstractmethod
    def whole(self) -> msgspec.Struct:
        """The answer, once it is whole."""
