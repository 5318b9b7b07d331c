"""Telling reasoning from the answer behind it."""

from __future__ import annotations

import re

from quire.server.answer_events import ReasoningDelta
from quire.server.reasoning.registry import ReasoningStyle
from quire.server.text_reader import SPACE, Markers, Reading, TextReader, TextStage

_NEWLINES = re.compile(r"[\r\n]+")


class ReasoningParser(TextStage):
    """Splits text that arrives in pieces into reasoning and content.

    Reasoning comes first or not at all: a mark further on is content. White space around the reasoning and the
    newlines before the answer are dropped. Reasoning that never ends has no answer behind it.
    """

    def __init__(self, style: ReasoningStyle, *, starts_inside: bool = False) -> None:
        self._style = style
        self._starts_inside = starts_inside
        self._space: list[str] = []
        """White space at the end of the reasoning so far."""
        super().__init__(TextReader())

    def _read(self) -> Reading[None]:
        reader = self._reader
        space = yield from reader.take(SPACE)
        is_opened = yield from reader.take_literal(self._style.start)
        if is_opened or self._starts_inside:
            yield from reader.take(SPACE)
            yield from reader.copy_until(Markers([self._style.end]), self._put_reasoning)
            reader.unmark()
            yield from reader.take(_NEWLINES)
        else:
            self._put_content(space)
        yield from reader.copy_until(Markers([]), self._put_content)

    def _put_reasoning(self, text: str) -> None:
        visible = text.rstrip()
        if visible:
            self._events.append(ReasoningDelta("".join([*self._space, visible])))
            self._space.clear()
        self._space.append(text[len(visible) :])
