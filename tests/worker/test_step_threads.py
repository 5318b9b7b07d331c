"""On which thread steps are computed, and that it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quire.worker.step_threads import CallersThread, OwnThread


def join_new(before: set[threading.Thread]) -> None:
    new = [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("quire-worker")
    ]
    for thread in new:
        thread.join(10)
    assert not any(thread.is_alive() for thread in new)


@pytest.fixture(autouse=True)
def before() -> Iterator[set[threading.Thread]]:
    threads = set(threading.enumerate())
    yield threads
    join_new(threads)


def where(_: object = None) -> str:
    return threading.current_thread().name


@pytest.mark.parametrize(("make", "name"), [(OwnThread, "quire-worker_0"), (CallersThread, where())])
def test_steps_are_answered_in_order_by_one_thread(make: Callable[[], Any], name: str) -> None:
    thread = make()
    assert thread.run(where) == name
    for plan in range(3):
        thread.submit(lambda plan: (plan, where()), plan)
    assert [thread.collect() for _ in range(3)] == [(plan, name) for plan in range(3)]
    thread.shutdown()


def test_what_was_begun_is_over_after_the_end() -> None:
    thread: OwnThread[int, None] = OwnThread()
    may_end, ended = threading.Event(), threading.Event()

    def step(_: int) -> None:
        may_end.wait(10)
        ended.set()

    thread.submit(step, 0)
    threading.Timer(0.05, may_end.set).start()
    thread.shutdown()
    assert ended.is_set()


def test_a_start_that_fails_leaves_no_thread(before: set[threading.Thread]) -> None:
    thread: OwnThread[int, None] = OwnThread()

    def fail() -> None:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        thread.run(fail)
    join_new(before)
