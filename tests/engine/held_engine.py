"""An engine that waits for its client. A tiny model makes hundreds of tokens while a test's event loop loses its core once."""

from __future__ import annotations

import threading
import time

from quire.engine.local_engine import LocalEngine

PATIENCE_S = 30.0


def hold_after(connection: LocalEngine, num_steps: int) -> threading.Event:
    """Once it has done so many more steps the engine stands still until something is asked of it, or the event is set.

    With no request left, only with steps that were submitted for one, it goes on.
    """
    engine = connection._engine.client.engine
    last_step = engine.steps.num_steps + num_steps
    may_go_on = threading.Event()

    def wait() -> None:
        if engine.steps.num_steps >= last_step:
            deadline = time.monotonic() + PATIENCE_S
            while engine._groups and connection._commands.empty() and not may_go_on.wait(0.001):
                assert time.monotonic() < deadline, "nobody came for the engine that is held"
            engine.view.while_computing = lambda: None

    engine.view.while_computing = wait
    return may_go_on
