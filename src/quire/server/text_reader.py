"""Reading text that arrives in pieces.

A parser here is a generator: plain code, top to bottom, that yields when it needs text that has not come yet. What it
does cannot depend on where the pieces were cut, because it decides only on text it has waited for.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from typing import TypeVar

from quire.server.answer_events import ContentDelta, Event, merge_events

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A generator that yields whenever it waits for text and returns a T."""

SPACE = re.compile(r"\s+")


class MalformedTextError(Exception):
    """The text is not what the parser reads; never leaves the parser."""


class TextEndedError(Exception):
    """The text ended within a construct; never leaves the parser."""


class Markers:
    """A set of literal texts to look for. One that begins with another is never found: the shorter one ends first."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = [text for text in texts if not any(text.startswith(other) for other in texts if other != text)]
        self._pattern = re.compile("|".join(re.escape(text) for text in self._texts) or r"(?!)")
        self._first_chars = re.compile("|".join(re.escape(text[0]) for text in self._texts) or r"(?!)")
        self._longest = max((len(text) for text in self._texts), default=0)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """The first marker at or after `start`."""
        return self._pattern.search(text, start)

    def safe_end(self, text: str, start: int) -> int:
        """Where the text that surely belongs to no marker ends; after it stands the start of a marker, or nothing."""
        for match in self._first_chars.finditer(text, max(start, len(text) - self._longest + 1)):
            tail = text[match.start() :]
            if any(marker.startswith(tail) for marker in self._texts):
                return match.start()
        return len(text)


class TextReader:
    """The text so far, minus what was read. Everything costs time linear in the text, however it is cut."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._closed = False
        self._mark: int | None = None
        self._kept: list[str] = []
        """What was read since the mark and is no longer in `_text`."""

    def feed(self, text: str) -> None:
        """Add a piece. What is unread by then is short: readers read on until they wait."""
        if self._mark is not None:
            self._kept.append(self._text[self._mark : self._at])
            self._mark = 0
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self) -> None:
        """No text comes after this."""
        self._closed = True

    def mark(self) -> None:
        """From here on, remember what is read."""
        self._mark = self._at
        self._kept.clear()

    def unmark(self) -> None:
        self._mark = None

    def since_mark(self) -> str:
        """What was read since the last mark."""
        return "".join(self._kept) + self._text[self._mark : self._at] if self._mark is not None else ""

    def fill(self, num_chars: int = 1) -> Reading[bool]:
        """Wait for unread characters; False if the text ends before that many."""
        while len(self._text) - self._at < num_chars:
            if self._closed:
                return False
            yield
        return True

    def peek(self, num_chars: int = 1) -> Reading[str]:
        """The next characters, left unread. Raises TextEndedError."""
        if not (yield from self.fill(num_chars)):
            self._at = len(self._text)
            raise TextEndedError
        return self._text[self._at : self._at + num_chars]

    def peek_visible(self) -> Reading[str]:
        """Read white space; the character after it, left unread. Raises TextEndedError."""
        yield from self.take(SPACE)
        return (yield from self.peek())

    def skip(self, num_chars: int = 1) -> None:
        """Read characters that a peek has shown."""
        self._at += num_chars

    def take(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read all that matches; the pattern is a character class and a plus. Empty at the end of the text."""
        pieces: list[str] = []
        while (yield from self.fill()):
            match = pattern.match(self._text, self._at)
            if match is None:
                break
            pieces.append(match.group())
            self._at = match.end()
        return "".join(pieces)

    def take_ready(self, pattern: re.Pattern[str]) -> str:
        """Read what matches of the text that has come, without waiting for more."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def take_end_within(self, literal: str) -> bool:
        """Read what is left, if the text has ended within the literal."""
        # By its length first: of a long text what is left is not copied at each mark.
        if (
            not self._closed
            or len(self._text) - self._at > len(literal)
            or not literal.startswith(self._text[self._at :])
        ):
            return False
        self._at = len(self._text)
        return True

    def take_literal(self, literal: str) -> Reading[bool]:
        """Read the literal if it comes next; else read nothing."""
        while True:
            head = self._text[self._at : self._at + len(literal)]
            if head == literal:
                self._at += len(literal)
                return True
            if self._closed or not literal.startswith(head):
                return False
            yield

    def expect(self, literal: str) -> Reading[None]:
        """Read white space and the literal. Raises MalformedTextError, TextEndedError."""
        yield from self.take(SPACE)
        if not (yield from self.take_literal(literal)):
            if self.take_end_within(literal):
                raise TextEndedError
            raise MalformedTextError

    def copy_until(self, markers: Markers, write: Callable[[str], None]) -> Reading[str | None]:
        """Hand the text up to the next marker to `write`, as soon as it is sure; mark there and read the marker.

        Returns the marker, or None at the end of the text.
        """
        while True:
            match = markers.search(self._text, self._at)
            if match is not None:
                self._write_up_to(match.start(), write)
                self.mark()
                self._at = match.end()
                return match.group()
            self._write_up_to(len(self._text) if self._closed else markers.safe_end(self._text, self._at), write)
            if self._closed:
                return None
            yield

    def _write_up_to(self, end: int, write: Callable[[str], None]) -> None:
        if end > self._at:
            write(self._text[self._at : end])
            self._at = end


class TextStage(ABC):
    """One of the parsers that read a model's text one after the other.

    It turns text that arrives in pieces into events: `_read` reads all of it and puts them into `_events`.
    """

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

    def _put_content(self, text: str) -> None:
        self._events.append(ContentDelta(text))

    def _advance(self) -> list[Event]:
        next(self._reading, None)
        events, self._events = self._events, []
        return merge_events(events)
