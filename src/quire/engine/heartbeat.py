"""The engine's pulse: a thread that tells clients, some times a second, how the engine is."""

from __future__ import annotations

import threading
import time

import zmq

from quire.core.engine_info import EngineInfo
from quire.core.stats import EngineStats
from quire.core.wire import EngineState, EngineStatus
from quire.engine.frames import Frames

INTERVAL_S = 0.2
NEWS_INTERVAL_S = 0.02
NEWS_S = 5.0
"""So long after a change of state it beats faster: clients whose sockets connect meanwhile did not hear of it."""


class Heartbeat:
    """The engine's thread writes the attributes, the heartbeat's reads them. A stopped process sends nothing."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.state: EngineState = "fetching"
        self.info: EngineInfo | None = None
        self.stats: EngineStats | None = None
        self.step_start_time: float | None = None
        """Monotonic seconds; None between steps."""
        self._frames: Frames[EngineStatus] = Frames(EngineStatus)
        self._socket = context.socket(zmq.PUB)
        self._socket.bind(address)
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._change_time = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="quire-heartbeat", daemon=True)
        self._thread.start()

    def enter(self, state: EngineState) -> None:
        """Tell at once."""
        self.state = state
        self._change_time = time.monotonic()
        self._changed.set()

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_news = time.monotonic() < self._change_time + NEWS_S
            self._changed.wait(NEWS_INTERVAL_S if is_news else INTERVAL_S)
            self._changed.clear()
            self._socket.send(self._frames.encode(self._status()), zmq.NOBLOCK)
        self._socket.close(linger=200)

    def _status(self) -> EngineStatus:
        now, started = time.monotonic(), self.step_start_time
        step_seconds = 0.0 if started is None else max(0.0, now - started)
        return EngineStatus(self.state, now, self.info, self.stats, step_seconds)
