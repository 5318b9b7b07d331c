"""A worker or a server in a process group of its own: asked, frozen while another computes, measured, stopped."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import last_error
from benchmarks.script import ROOT

STOP_TIMEOUT_S = 15.0


class EngineError(Exception):
    """An engine failed or took too long; the message is one line."""


class EngineProcess:
    """Started on construction; `start_time` is a `time.perf_counter` value. What it writes goes to `log`, but for the
    replies of one that is asked: a pipe that nobody reads would halt a server after a few hundred requests."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, *, is_asked: bool = True) -> None:
        self._log = log
        self._frozen = False
        self.start_time = time.perf_counter()
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env={**_environment(), **env},
                cwd=ROOT,  # from which workers import their own files
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if is_asked else stderr,
                stderr=stderr,
                # A group of its own, so that signals reach the processes that the engine starts as well.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._received = b""

    def freeze(self) -> None:
        """Some engines spin while they wait; a stopped one takes nothing from the engine that is measured."""
        if not self._frozen:
            self._signal(signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def peak_memory(self) -> int:
        """Bytes: the sum of the peak resident sets of its processes."""
        return sum(peak_resident(pid) for pid in _session(self._process.pid))

    def failure(self) -> str:
        return f"it ended with code {self._process.poll()}: {last_error(self._log)}"

    def stop(self) -> None:
        """End all of its processes. Idempotent."""
        self.thaw()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _signal(self, number: int) -> None:
        # By process and not by group: vLLM's engine process makes itself a group within the session.
        for pid in _session(self._process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """A worker's reply. Raises EngineError if there is none in time; the worker is of no use after that."""
        self.thaw()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._read_line(timeout_s))
        except BrokenPipeError:
            raise EngineError(self.failure()) from None
        if "error" in reply:
            raise EngineError(" ".join(str(reply["error"]).split())[:300])
        return dict(reply)

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.perf_counter() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, deadline - time.perf_counter())):
                    raise EngineError(f"no answer within {timeout_s:.0f} s")
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    self._process.wait()
                    raise EngineError(self.failure())
                self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return line


def _environment() -> dict[str, str]:
    """Ours, but that Python keeps what it compiles: pip compiled the other engines when it installed them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _die_with_parent() -> None:
    """PR_SET_PDEATHSIG, SIGKILL (prctl(2)): a frozen worker of a killed run would never hear that its stdin closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def _session(leader: int) -> list[int]:
    """The processes of the session that `leader` began."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # Field 6 of stat(5); the name in parentheses before it may hold spaces.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def peak_resident(pid: int) -> int:
    """Bytes, the kernel's own high-water mark: anonymous memory, code pages, and mapped files while they are resident."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
