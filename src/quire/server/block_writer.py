"""What the APIs whose answers are blocks (responses, messages) share: one sample, read once, written as their events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from quire.core.outputs import RequestOutput
from quire.server.answer_events import Event, ToolCallArguments, ToolCallStart
from quire.server.answering import AnswerWriter
from quire.server.chat_turn import ChatTurn


class BlockWriter(AnswerWriter):
    """Writes an answer as events, and keeps the whole of it. Blocks follow each other; the last one may be open.

    White space alone makes no block: models put it between reasoning, text and calls.
    """

    whole: msgspec.Struct
    """The answer as far as it has come."""

    def __init__(self, turn: ChatTurn) -> None:
        self._parser = turn.parser()
        self._events: list[bytes] = []
        self._has_begun = False
        self._open: type[Event] | None = None
        """What the open block began with."""
        self._texts: list[str] = []
        """Of the open block."""
        self._space = ""
        """Read where no text block is open; it belongs to one if visible text follows."""
        self.num_tokens = 0

    def answer(self, outputs: Sequence[RequestOutput]) -> msgspec.Struct:
        (output,) = outputs
        self.write(output)
        return self.whole

    def write(self, output: RequestOutput, number: int = 0) -> bytes:
        (sample,) = output.outputs
        if not self._has_begun:
            self._has_begun = True
            self.begin(output)
        self.num_tokens += len(sample.token_ids)
        for part in self._parser.read(sample.text, ends=sample.finish_reason is not None):
            self._put(part)
        if sample.finish_reason is not None:
            self._close(is_complete=sample.finish_reason != "length")
            self.finish(output)
        return self._take_events()

    def _take_events(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)

    def _put(self, part: Event) -> None:
        if isinstance(part, ToolCallStart):
            self._open_with(part)
            return
        text = part.text
        if not isinstance(part, ToolCallArguments) and self._open is not type(part):
            self._close()
            text = self._space + text
            if text.isspace():
                self._space = text
                return
            self._open_with(part)
        self._texts.append(text)
        self.extend_block(text)

    def _open_with(self, part: Event) -> None:
        self._close()
        self._open = type(part)
        self._texts.clear()
        self.open_block(part)

    def _close(self, *, is_complete: bool = True) -> None:
        if self._open is not None:
            self.close_block("".join(self._texts), is_complete=is_complete)
            self._open, self._space = None, ""

    @abstractmethod
    def begin(self, output: RequestOutput) -> None:
        """The answer has begun."""

    @abstractmethod
    def open_block(self, part: Event) -> None:
        """One of reasoning, text or a call, by the first part of it."""

    @abstractmethod
    def extend_block(self, text: str) -> None:
        """More of the open block: text, reasoning, or JSON of a call's arguments."""

    @abstractmethod
    def close_block(self, text: str, *, is_complete: bool) -> None:
        """`text`: all of the block's."""

    @abstractmethod
    def finish(self, output: RequestOutput) -> None:
        """The answer is whole with this output; no block is open."""
