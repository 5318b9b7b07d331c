"""Reading calls of tools: the parts that the formats share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from quire.server.answer_events import Event, ToolCallArguments, ToolCallStart
from quire.server.text_reader import SPACE, MalformedTextError, Reading, TextReader
from quire.server.tools.literals import read_text, read_value, to_json

FUNCTION_NAME = re.compile(r"[\w.:/-]{1,128}")
"""What a model may write for a function; a request's own names are held to a narrower rule."""

_NAME_PIECE = re.compile(r"[\w.:/-]+")
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")


class CallReader(TextReader):
    """Reads calls and reports them to `put`, the arguments while they arrive; what is no call goes to `put_text`.

    A call is announced when its name is known and its arguments have begun. Before that it may still turn out to be
    no call: the mark then stands at its beginning. Afterwards the mark stands behind what was reported.

    `names`, when given, are the only functions that count; `max_calls` are reported, later ones only read.
    """

    def __init__(
        self,
        put: Callable[[Event], None],
        put_text: Callable[[str], None],
        make_id: Callable[[], str],
        max_calls: int | None,
    ) -> None:
        super().__init__()
        self._put = put
        self._put_text = put_text
        self._make_id = make_id
        self._max_calls = max_calls
        self.names: Collection[str] | None = None
        self.num_calls = 0
        self._forget()

    def _forget(self) -> None:
        self._name: str | None = None
        self._has_arguments = False
        self._waiting: list[str] = []
        """JSON of the arguments, not reported yet."""
        self.is_announced = False

    def name_call(self, name: str) -> None:
        """The call's function is known. Raises MalformedTextError for what is no name."""
        is_wanted = self.names is None or name in self.names
        if self._name is not None or not is_wanted or not FUNCTION_NAME.fullmatch(name):
            raise MalformedTextError
        self._name = name
        if self._waiting:
            self.write_arguments("")

    def write_arguments(self, json_text: str) -> None:
        """Report more JSON of the arguments, or keep it while the name is unknown."""
        self._waiting.append(json_text)
        if self._name is None:
            return
        index = self.num_calls
        if not self.is_announced:
            self.is_announced = True
            self._report(ToolCallStart(index, self._make_id(), self._name))
        self._report(ToolCallArguments(index, "".join(self._waiting)))
        self._waiting.clear()
        self.mark()

    def end_call(self) -> None:
        """The call is complete; without arguments it has an empty object of them. Raises MalformedTextError."""
        if self._name is None or (self.names is not None and not self._has_arguments):
            raise MalformedTextError
        if not self._has_arguments:
            self.write_arguments("{}")
        self.mark()
        self.num_calls += 1
        self._forget()

    def _report(self, event: ToolCallStart | ToolCallArguments) -> None:
        if self._max_calls is None or event.index < self._max_calls:
            self._put(event)

    def break_call(self, *, cut: bool) -> str:
        """The call ends unfinished. Returns the text read for it that was not reported.

        Where the text was `cut` within the arguments, the rest goes to the arguments as it stands.
        """
        rest = self.since_mark()
        if self.is_announced:
            if cut and not self._has_arguments:
                self._report(ToolCallArguments(self.num_calls, rest))
            if cut:
                rest = ""
            self.num_calls += 1
        self._forget()
        return rest

    def take_wrapping(self, literal: str) -> Reading[bool]:
        """After a call: read white space and the literal if it comes next, else leave both. Where the text ends within the literal that is
        none of the answer either."""
        self.mark()
        yield from self.take(SPACE)
        found = yield from self.take_literal(literal)
        if not found and self.take_end_within(literal):
            self.mark()
        elif not found:
            self._put_text(self.since_mark())
            self.mark()
        return found

    def read_name(self) -> Reading[str]:
        """Read a function's name, written without quotes."""
        yield from self.peek_visible()
        name = yield from self.take(_NAME_PIECE)
        yield from self.peek()  # only what follows shows that it is complete
        return name

    def read_arguments(self) -> Reading[None]:
        """Read the arguments: an object, or the JSON of one in a string, or null."""
        if self._has_arguments:
            raise MalformedTextError
        char = yield from self.peek_visible()
        if char == "{":
            yield from read_value(self, self.write_arguments)
        elif char == '"':
            json_text = to_json((yield from read_text(self)))
            if not json_text.startswith("{"):
                raise MalformedTextError
            self.write_arguments(json_text)
        else:
            yield from self.expect("null")
            self.write_arguments("{}")
        self._has_arguments = True

    def read_keyword_arguments(self) -> Reading[None]:
        """Read `a=1, b="x")` or `**{"a": 1})`, with the parenthesis."""
        char = yield from self.peek_visible()
        if char == "*":
            yield from self.expect("**")
            if (yield from self.peek_visible()) != "{":
                raise MalformedTextError
            yield from read_value(self, self.write_arguments)
            yield from self.expect(")")
        else:
            opening = "{"
            while (yield from self.peek_visible()) != ")":
                name = yield from self.read_name()
                if not name.isidentifier():
                    raise MalformedTextError
                yield from self.expect("=")
                yield from read_value(self, self.write_arguments, f'{opening}"{name}": ')
                opening = ", "
                if (yield from self.peek_visible()) != ")":
                    yield from self.expect(",")
            self.skip()
            self.write_arguments("{}" if opening == "{" else "}")
        self._has_arguments = True

    def read_call_object(self) -> Reading[None]:
        """Read `{"name": ..., "arguments": {...}}`; "parameters" is as good, and the order does not matter."""
        yield from self.expect("{")
        while (yield from self.peek_visible()) != "}":
            key = yield from read_text(self)
            yield from self.expect(":")
            if key == "name":
                self.name_call((yield from read_text(self)))
            elif key in _ARGUMENT_KEYS:
                yield from self.read_arguments()
            elif self.names is None or key in _OTHER_KEYS:
                yield from read_value(self, _ignore)
            else:
                raise MalformedTextError
            if (yield from self.peek_visible()) != "}":
                yield from self.expect(",")
        self.skip()
        self.end_call()


def _ignore(json_text: str) -> None:
    """For values that mean nothing here."""
