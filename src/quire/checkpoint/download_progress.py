"""The progress of a download: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

_SECONDS_BETWEEN_LINES = 5.0


class DownloadProgress:
    """Shows on stderr how many of `num_bytes` have come."""

    def __init__(self, name: str, num_bytes: int) -> None:
        self._name = name
        self._num_bytes = num_bytes
        self._num_done = 0
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                "{task.description}",
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task(name, total=num_bytes)

    def update(self, num_bytes_done: int) -> None:
        self._num_done = min(num_bytes_done, self._num_bytes)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._num_done)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._print_line()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        seconds = max(self._last_line - self._started, 1e-3)
        print(
            f"{self._name}: {self._num_done / 1e6:.0f} of {self._num_bytes / 1e6:.0f} MB"
            f" in {seconds:.0f} s ({self._num_done / 1e6 / seconds:.1f} MB/s)",
            file=sys.stderr,
        )
