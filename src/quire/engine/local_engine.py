"""An engine on a thread of this process."""

from __future__ import annotations

import asyncio
import atexit
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from quire.core.wire import AnyRequest
from quire.engine.launch import LaunchedEngine
from quire.engine.stream import Stream, hand_out, take_outputs
from quire.errors import EngineDeadError

IDLE_WAIT_S = 0.5
"""How long the engine thread sleeps without work before it looks again; new work wakes it at once."""

Command = Callable[[], None]


class LocalEngine:
    def __init__(self, engine: LaunchedEngine) -> None:
        self._engine = engine
        self.info, self.tokenizer, self.inputs = engine.info, engine.tokenizer, engine.inputs
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._death: EngineDeadError | None = None
        self._lock = threading.Lock()
        """Guards the step from alive to dead: no command may slip in after the last one was read."""
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        # Were it still in a native kernel when the interpreter goes, that would end the process with an abort.
        self._at_exit = functools.partial(_stop, self._commands, self._thread)
        atexit.register(self._at_exit)
        self._thread.start()

    def submit(self, request: AnyRequest, stream: Stream) -> None:
        self._send(lambda: self._add(request, stream))

    def drop(self, request_id: str, stream: Stream) -> None:
        self._commands.put(lambda: self._drop(request_id, stream))

    def abort(self, request_id: str) -> None:
        self._send(lambda: self._abort(request_id))

    async def reset_prefix_cache(self) -> bool:
        done: Future[bool] = Future()

        def reset() -> None:
            if done.set_running_or_notify_cancel():  # who asked may have left
                done.set_result(self._engine.client.engine.reset_prefix_cache())

        self._send(reset)
        return await asyncio.wrap_future(done)

    def check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death

    def shutdown(self) -> None:
        """Stop the thread and free the model."""
        atexit.unregister(self._at_exit)
        _stop(self._commands, self._thread)
        self._engine.shutdown()

    def _run(self) -> None:
        """The engine thread: obey commands, step, hand out."""
        try:
            while self._obey():
                hand_out(take_outputs(self._engine.client.step(), self._streams))
            self._die(EngineDeadError("The engine was shut down."))
        except Exception as error:
            self._die(_as_death(error))

    def _obey(self) -> bool:
        """Carry out what is queued, waiting for it if there is nothing else to do; False means stop."""
        idle = not self._engine.client.has_unfinished
        while True:
            try:
                command = self._commands.get(block=idle, timeout=IDLE_WAIT_S if idle else None)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            idle = False

    def _add(self, request: AnyRequest, stream: Stream) -> None:
        try:
            self._engine.client.add_request(request)
        except Exception as error:
            hand_out([(stream, error)])
            return
        self._streams[request.request_id] = stream

    def _drop(self, request_id: str, stream: Stream) -> None:
        """Another request may have taken the id by now: only its own stream is dropped."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.client.abort(request_id)

    def _abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        output = self._engine.client.abort(request_id)
        if stream is not None and output is not None:
            hand_out([(stream, output)])

    def _send(self, command: Command) -> None:
        with self._lock:
            self.check_alive()
            self._commands.put(command)

    def _die(self, error: EngineDeadError) -> None:
        """Everyone who waits hears of it; commands that came too late are answered the same way."""
        with self._lock:
            self._death = error
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if command is not None:
                command()
        hand_out([(stream, error) for stream in self._streams.values()])
        self._streams.clear()


def _as_death(error: Exception) -> EngineDeadError:
    """With the error's kind: some have no words."""
    if isinstance(error, EngineDeadError):
        return error
    death = EngineDeadError(f"The engine stopped because its thread failed with {type(error).__name__}: {error}.")
    death.__cause__ = error
    return death


def _stop(commands: queue.SimpleQueue[Command | None], thread: threading.Thread) -> None:
    commands.put(None)
    thread.join()
