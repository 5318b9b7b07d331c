"""One engine at one precision, made ready and started when it is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import Environment, InstallError, Peer, Variant
from benchmarks.peers.process import EngineError, EngineProcess

from quire.plan.machine import read_machine

LOAD_TIMEOUT_S = 900.0
"""vLLM compiles the model when it starts for the first time: 95 s alone on two cores, 300 s beside other jobs."""
START_BYTES = 6 << 30
"""What must be free before another engine starts: the largest of them takes about 5 GB."""
TURN_BYTES = 2 << 30
"""What must be free before a running one computes: some take memory for keys and values as requests come."""


@dataclass
class Contender:
    """Its worker runs between its turns but is frozen. `versions` are known once it has run."""

    peer: Peer
    variant: Variant
    environment: Environment
    weights: Path
    logs: Path
    versions: dict[str, str] = field(default_factory=dict)
    how_installed: str = ""
    worker: EngineProcess | None = None

    @property
    def name(self) -> str:
        return self.variant.name

    def start(self, variant: Variant) -> EngineProcess:
        """A new worker with its model loaded, as this or its running variant. The caller stops it. Raises EngineError."""
        process = self.start_process([self.peer.python(self.environment), "-m", self.peer.module], is_worker=True)
        try:
            options = {"model": str(self.weights), **variant.options}
            reply = process.ask({"op": "load", "options": options}, LOAD_TIMEOUT_S)
        except BaseException:
            process.stop()
            raise
        self.versions = reply["result"]
        return process

    def start_process(self, command: list[str], *, is_worker: bool) -> EngineProcess:
        """A worker, which is asked, or a server."""
        log = self.logs / f"{self.name.replace(' ', '_')}.{'worker' if is_worker else 'server'}.log"
        return EngineProcess(command, self.peer.process_env(self.environment), log, is_asked=is_worker)

    def generate(self, prompts: list[list[int]], num_tokens: int, timeout_s: float) -> tuple[float, list[list[int]]]:
        """Seconds, measured in the worker, and the tokens. Raises EngineError, also for the wrong number of tokens."""
        reply = self.ask({"op": "generate", "prompts": prompts, "num_tokens": num_tokens}, timeout_s)
        lengths = [len(token_ids) for token_ids in reply["result"]]
        if lengths != [num_tokens] * len(prompts):
            raise EngineError(f"asked for {num_tokens} tokens each, it gave {lengths[:8]}")
        return reply["seconds"], reply["result"]

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """A reply of the worker, which is stopped if it fails. Raises EngineError."""
        try:
            return self.ensure_started().ask(request, timeout_s)
        except BaseException:
            self.stop()
            raise

    def ensure_started(self) -> EngineProcess:
        """The worker, started if there is none. Raises EngineError."""
        if self.worker is None:
            self.worker = self.start(self.variant.running)
        return self.worker

    def freeze(self) -> None:
        if self.worker is not None:
            self.worker.freeze()

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None


def make_room(contender: Contender, others: Iterable[Contender]) -> None:
    """Stop others, one after the other, until there is memory for the turn of `contender`."""
    num_bytes = START_BYTES if contender.worker is None else TURN_BYTES
    for other in others:
        if read_machine().free_memory >= num_bytes:
            return
        other.stop()


def one_line(error: BaseException) -> str:
    text = str(error) if isinstance(error, EngineError | InstallError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
