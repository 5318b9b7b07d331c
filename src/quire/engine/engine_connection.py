"""How `AsyncLLM` reaches its engine: on a thread of this process (LocalEngine) or in another one (RemoteEngine)."""

from __future__ import annotations

from typing import Protocol

from quire.core.engine_info import EngineInfo
from quire.core.wire import AnyRequest
from quire.engine.input_processor import InputProcessor
from quire.engine.stream import Stream
from quire.engine.tokenizer import Tokenizer


class EngineConnection(Protocol):
    """Called from event loops; nothing here waits for the engine but `reset_prefix_cache`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def inputs(self) -> InputProcessor: ...

    def submit(self, request: AnyRequest, stream: Stream) -> None:
        """Start a request; outputs and errors come through the stream. Raises EngineDeadError."""

    def drop(self, request_id: str, stream: Stream) -> None:
        """The stream's reader left: abort the request, unless it ended or its id belongs to another stream by now."""

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets what there is, with the reason abort."""

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while sequences run."""

    def check_alive(self) -> None:
        """Raises EngineDeadError if the engine stopped or does not answer."""

    def shutdown(self) -> None:
        """Let go of the engine; pending requests end with EngineDeadError. Idempotent."""
