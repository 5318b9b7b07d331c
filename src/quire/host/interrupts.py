"""Ctrl-C between two steps of the engine, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class Unbroken(threading.local):
    """While a thread has it entered, not even a second Ctrl-C breaks off what it does. The handler stays: to change it in each
    step would take two system calls."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


unbroken = Unbroken()


class DeferredInterrupt:
    """While entered, a first Ctrl-C (SIGINT) waits until `raise_pending`; a second one waits only for what is `unbroken`.

    An interrupt inside a step would leave scheduler and worker apart: one has planned what the other never saw.
    Python runs signal handlers on the main thread alone, so elsewhere this does nothing; neither where SIGINT is
    ignored or handled outside Python.
    """

    def __init__(self) -> None:
        self._pending = False
        self._previous: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Self:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            signal.signal(signal.SIGINT, self._note)
            self._previous = handler
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        # After an error too: a caller that goes on after it is to be interrupted all the same.
        if error is None or isinstance(error, Exception):
            self.raise_pending()

    def raise_pending(self) -> None:
        """What the handler before this one does about a Ctrl-C (KeyboardInterrupt, as a rule), if there was one."""
        if self._pending:
            self._pending = False
            self._call_previous(signal.SIGINT, None)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._pending and not unbroken.depth:
            self._call_previous(signum, frame)
        self._pending = True

    def _call_previous(self, signum: int, frame: FrameType | None) -> None:
        if self._previous is not None:
            self._previous(signum, frame)
