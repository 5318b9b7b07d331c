"""The native kernels' module (csrc/), where it was built; what it computes with, and what it records into."""

from __future__ import annotations

import importlib
import os
import threading
from functools import cache
from types import ModuleType
from typing import Any

from quire.core.native import has_native_module
from quire.errors import InvalidRequestError, QuireError
from quire.host.cores import allowed_cores
from quire.kernels.recording import Arena, Recording, current_recording


class _OfThread(threading.local):
    num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    instruction_set: str | None = None


_of_thread = _OfThread()


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those this CPU has, the fastest first; none where the module was not built."""
    return tuple(module().instruction_sets()) if has_native_module() else ()


@cache
def emulated_sets() -> tuple[str, ...]:
    """For tests: some kernels of sets that the CPU may lack, in plain C++."""
    return tuple(module().emulated_sets()) if has_native_module() else ()


def current_instruction_set() -> str:
    """That kernels called on this thread are of: the fastest, until `use_instruction_set` says otherwise."""
    return _of_thread.instruction_set or instruction_sets()[0]


def use_instruction_set(name: str | None) -> None:
    """From now on, on this thread; None: the fastest. What is recorded already keeps its own.

    Raises InvalidRequestError naming the CPU's.
    """
    if name is not None and name not in (*instruction_sets(), *emulated_sets()):
        raise InvalidRequestError(
            f"instruction_set {name} cannot be used: this CPU has {', '.join(instruction_sets())}.",
            field="instruction_set",
            value=name,
        )
    _of_thread.instruction_set = name


def thread_count() -> int:
    """That kernels called on this thread run on: all CPUs this process may use, until `use_num_threads` says otherwise."""
    return _of_thread.num_threads


def use_num_threads(count: int) -> None:
    """From now on, on this thread."""
    _of_thread.num_threads = count


def current_program(*, by_token: bool = False) -> Any:
    """What the kernels are recorded into; None where they are to run.

    `by_token`: of neighbouring kernels each thread goes on with the tokens it had, without waiting for the others.
    """
    recording = current_recording()
    if recording is None:
        return None
    if not by_token:
        recording.arena.settle()
    return recording.program


def new_recording(arena: Arena, num_rows: int = 0) -> Recording:
    """Enter it, compute, leave it; then `run` its program, as often as wanted, with new numbers in the same tensors.

    Programs that never run at the same time may share an arena. What is recorded for `num_rows` tokens is taken to be of one
    token each row: all tokens have to be more, or as many.
    """
    return Recording(module().Program(num_rows), arena, thread_count())


def run(recording: Recording, counts: tuple[int, int] | None = None) -> int:
    """All that was recorded, or what concerns the first so many tokens, of the first so many rows. On no more threads than when it was
    recorded, and on fewer for a while where members mostly waited for each other: returns on how many."""
    num_threads: int = recording.program.run(min(thread_count(), recording.num_threads), counts)
    return num_threads


@cache
def module() -> ModuleType:
    """quire._native; only files of this folder call it. Raises QuireError where it is there and cannot be loaded."""
    try:
        found = importlib.import_module("quire._native")
    except ImportError as error:
        raise QuireError(
            f"The native kernels cannot be loaded ({error}); install quire again, or choose backend torch."
        ) from error
    found.use_cores(allowed_cores())
    return found
