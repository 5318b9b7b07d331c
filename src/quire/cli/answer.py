"""An answer as it streams, and what is told about it."""

from __future__ import annotations

import sys
import time


class ShownAnswer:
    """What has been streamed of one answer, and how fast."""

    def __init__(self) -> None:
        self.text = ""
        self._num_tokens = 0
        self._start = self._first = self._last = time.perf_counter()

    def append(self, text: str, num_tokens: int) -> None:
        self._last = time.perf_counter()
        if not self._num_tokens:
            self._first = self._last
        self.text += text
        self._num_tokens += num_tokens

    def speed(self) -> str:
        """Decode speed leaves out the first token, whose time is TTFT."""
        if not self._num_tokens:
            return "no tokens"
        ttft = self._first - self._start
        decode = self._last - self._first
        rate = f"{(self._num_tokens - 1) / decode:.1f} tok/s, " if decode > 0 else ""
        return f"[{self._num_tokens} tokens, {rate}TTFT {ttft:.2f} s]"


def tell(text: str) -> None:
    """Everything that is not the answer goes to stderr, dim where a person reads it."""
    print(f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)
