"""One of the parsers that read a model's text one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire.server.answer_events import Event, merge_events
from quire.server.text_reader import Reading, TextReader


class TextStage(ABC):
    """Turns text that arrives in pieces into events: `_read` reads all of it and puts them into `_events`."""

    def __init__(self, reader: TextReader) -> None:
        self._reader = reader
        self._events: list[Event] = []
        self._reading = self._read()

    @abstractmethod
    def _read(self) -> Reading[None]: ...

    def feed(self, text: str) -> list[Event]:
        """What the text means, as far as it is sure."""
        self._reader.feed(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The text ends here: what was held back."""
        self._reader.close()
        return self._advance()

    def _advance(self) -> list[Event]:
        next(self._reading, None)
        events, self._events = self._events, []
        return merge_events(events)
