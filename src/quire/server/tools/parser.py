"""Finding calls of tools in a model's text."""

from __future__ import annotations

from collections.abc import Collection

from quire.server.answer_events import ContentDelta, Event, merge_events
from quire.server.text_reader import SPACE, MalformedTextError, Markers, Reading, TextEndedError, TextStage
from quire.server.tools.calls import CallReader
from quire.server.tools.tool_format import ToolFormat


class ToolParser(TextStage):
    """Splits text that arrives in pieces into content and calls.

    Text of the shape of a call that is none is content, to the last character. A call that was announced and then
    breaks off keeps the arguments it had: if the text ended, all of them; if it went on in a form that cannot be
    read, those before that point, and the rest is content. White space around calls is dropped, unless other
    content follows it.
    """

    _reader: CallReader

    def __init__(self, tool_format: ToolFormat, tool_names: Collection[str], *, max_calls: int | None = None) -> None:
        self._format = tool_format
        self._names = frozenset(tool_names)
        self._markers = Markers(tool_format.markers)
        self._at_edge = True
        """No content but white space since the beginning or the last call."""
        self._space: list[str] = []
        """That white space."""
        super().__init__(CallReader(self._put_call, self._put_text, tool_format.make_id, max_calls))

    @property
    def num_calls(self) -> int:
        """Calls announced so far; for the finish reason."""
        return self._reader.num_calls + self._reader.is_announced

    def finish(self) -> list[Event]:
        events = super().finish()
        if self._space and not self.num_calls:
            events = merge_events([*events, ContentDelta("".join(self._space))])
        return events

    def _read(self) -> Reading[None]:
        reader = self._reader
        while (marker := (yield from self._find_calls())) is not None:
            # A marker shows that a call is meant, whatever function it names; the client tells the model better.
            reader.names = None if marker else self._names
            try:
                yield from self._format.read_calls(reader, marker)
            except MalformedTextError:
                self._put_text(reader.break_call(cut=False))
                self._at_edge = False
            except TextEndedError:
                self._put_text(reader.break_call(cut=True))
            reader.unmark()

    def _find_calls(self) -> Reading[str | None]:
        """Read content up to calls. Returns their marker, "" where they have none; None at the end of the text."""
        reader = self._reader
        if self._format.bare_opener and self._at_edge:
            self._put_text((yield from reader.take(SPACE)))
            if (yield from reader.fill()) and (yield from reader.peek()) == self._format.bare_opener:
                reader.mark()
                return ""
        return (yield from reader.copy_until(self._markers, self._put_text))

    def _put_call(self, event: Event) -> None:
        self._space.clear()
        self._at_edge = True
        self._events.append(event)

    def _put_text(self, text: str) -> None:
        if self._at_edge and (not text or text.isspace()):
            self._space.append(text)
            return
        self._events += [ContentDelta("".join(self._space)), ContentDelta(text)]
        self._space.clear()
        self._at_edge = False
