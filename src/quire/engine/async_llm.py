"""`AsyncLLM`: the streaming face. The engine runs on a thread of its own; each request is an async generator."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self

from quire.config import EngineConfig
from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.engine.input_processor import Prompt
from quire.engine.launch import LaunchedEngine, launch
from quire.engine.tokenizer import Tokenizer
from quire.errors import EngineDeadError

IDLE_WAIT_S = 0.5
"""How long the engine thread sleeps without work before it looks again; new work wakes it at once."""

Command = Callable[[], None]


class Stream:
    """Where the engine thread leaves a request's outputs for the coroutine that waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()

    def put(self, item: RequestOutput | Exception) -> None:
        """From the engine thread. A loop that closed meanwhile has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:
            return

    async def get(self) -> RequestOutput:
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item


class AsyncLLM:
    """Keyword arguments are the fields of `EngineConfig`; errors on construction are those of `LLM`."""

    def __init__(self, model: str = "smollm2", **config: Any) -> None:
        self._engine: LaunchedEngine = launch(EngineConfig(model=model, **config))
        self.config = self._engine.config
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._death: Exception | None = None
        self._lock = threading.Lock()
        """Guards the step from alive to dead: no command may slip in after the last one was read."""
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream a request's outputs; leaving the generator early (break, cancel) aborts the request."""
        request = self._engine.inputs.process(
            prompt, sampling_params or SamplingParams(), request_id=request_id, priority=priority, cache_salt=cache_salt
        )
        stream = Stream()
        self._send(lambda: self._add(request, stream))
        try:
            finished = False
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            self._commands.put(lambda: self._drop(request.request_id, stream))

    async def abort(self, request_id: str) -> None:
        """End a request; its generator finishes with the reason abort."""
        self._send(lambda: self._abort(request_id))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while sequences run."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def reset() -> None:
            result = self._engine.client.engine.reset_prefix_cache()
            loop.call_soon_threadsafe(done.set_result, result)

        self._send(reset)
        return await done

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def errored(self) -> bool:
        return self._death is not None

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine stopped."""
        self._check_alive()

    def shutdown(self) -> None:
        """Stop the engine thread and free the model; pending requests end with EngineDeadError. Idempotent."""
        self._commands.put(None)
        self._thread.join()
        self._engine.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    def _run(self) -> None:
        """The engine thread: obey commands, step, hand out."""
        try:
            while self._obey():
                for output in self._engine.client.step():
                    if isinstance(output, RequestOutput):
                        self._hand_out(output)
            self._die(EngineDeadError("The engine was shut down."))
        except Exception as error:
            self._die(error)

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

    def _hand_out(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.put(output)
            if output.finished:
                del self._streams[output.request_id]

    def _add(self, request: Request, stream: Stream) -> None:
        try:
            self._engine.client.add_request(request)
        except Exception as error:
            stream.put(error)
            return
        self._streams[request.request_id] = stream

    def _drop(self, request_id: str, stream: Stream) -> None:
        """The generator ended. Another request may have taken its id by now: only its own stream is dropped."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.client.abort(request_id)

    def _abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        output = self._engine.client.abort(request_id)
        if stream is not None and output is not None:
            stream.put(output)

    def _send(self, command: Command) -> None:
        with self._lock:
            self._check_alive()
            self._commands.put(command)

    def _die(self, error: Exception) -> None:
        """Everyone who waits hears of it; commands that came too late are answered the same way."""
        with self._lock:
            self._death = error
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if command is not None:
                command()
        for stream in self._streams.values():
            stream.put(error)
        self._streams.clear()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
