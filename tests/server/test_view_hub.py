"""The engine view from the scheduler to a reader: what arrives is what is, through changes, losses and late joins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec
from tests.scheduler.harness import FULL, Harness, kv_config, make_sequence, sliding

from quire.core.kv_layout import KVSpec
from quire.core.sequence import Sequence, SequenceStatus
from quire.core.step import StepPlan
from quire.core.view import BlockState, ViewUpdate
from quire.engine.view import EngineView
from quire.server.view_hub import EngineMirror, ViewHub


class Watched:
    """A busy scheduler with little memory, and the view of it."""

    def __init__(self, specs: tuple[KVSpec, ...], seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = Harness(
            kv_config(num_blocks=16 * len(specs), specs=specs), max_num_batched_tokens=24, max_num_seqs=6
        )
        self.view = EngineView(self.harness.scheduler)
        self.now = 0.0
        self.sequences: list[Sequence] = []

    def act(self) -> None:
        """Add, abort or fork something, and compute a step."""
        scheduler = self.harness.scheduler
        draw = self.random.random()
        if draw < 0.3:
            shared = list(range(self.random.randrange(0, 14)))
            prompt = shared + [self.random.randrange(1000) for _ in range(self.random.randrange(1, 12))]
            self.sequences.append(make_sequence(len(self.sequences), prompt, self.random.randrange(1, 30)))
            scheduler.add(self.sequences[-1])
        elif draw < 0.4 and scheduler.running:
            scheduler.abort(self.random.choice(scheduler.running))
        elif draw < 0.5 and scheduler.running:
            self.fork(self.random.choice(scheduler.running))
        if scheduler.has_unfinished:
            self.step()
        self.now += 100.0

    def step(self) -> StepPlan:
        plan, _ = self.harness.step()
        self.view.note_step(plan, self.now, self.now + 1.0)
        return plan

    def fork(self, parent: Sequence) -> None:
        if parent.num_samples_in_flight or parent.num_planned < 2:
            return
        num_tokens = parent.num_planned
        child = make_sequence(len(self.sequences), [*parent.token_ids[:num_tokens], 7], 8)
        self.sequences.append(child)
        self.harness.scheduler.fork(parent, child, num_tokens)

    def truth(self) -> tuple[list[int], dict[int, list[list[int]]]]:
        """Each block's state, and the tables of who holds blocks, from counting holders one by one."""
        kv = self.harness.kv
        holders = [s for s in self.sequences if kv.tables(s) is not None]
        tables = {s.seq_id: kv.block_ids(s) for s in holders}
        counts = [0] * (kv.pool.num_blocks + 1)
        for table in tables.values():
            for block in (block for group in table for block in group if block):
                counts[block] += 1
        free = set(kv.pool._free)
        states = [
            BlockState.SHARED
            if counts[block] > 1
            else BlockState.PRIVATE
            if counts[block]
            else BlockState.FREE
            if block in free
            else BlockState.CACHED
            for block in range(1, kv.pool.num_blocks + 1)
        ]
        return [int(state) for state in states], tables


def seen(update: ViewUpdate) -> tuple[list[int], dict[int, list[list[int]]]]:
    """As `truth`, from a whole update; entries that left the window read as no block."""
    tables = {
        lane.seq_id: [[0] * table.first_kept + table.block_ids[table.first_kept :] for table in lane.tables]
        for lane in update.lanes
        if lane.tables
    }
    return list(update.block_states), tables


def check_against_truth(specs: tuple[KVSpec, ...], seed: int) -> set[str]:
    """Drive a random engine; after every update the mirror must show it as it is. Returns what was met."""
    watched = Watched(specs, seed)
    mirror = EngineMirror()
    watched.view.set_watching(1, True)
    met: set[str] = set()
    for _ in range(150):
        watched.act()
        if watched.random.random() < 0.3:
            continue  # Several steps between two updates.
        update = watched.view.take(watched.now)
        if update is None:
            continue
        crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(update), type=ViewUpdate)
        mirror.apply(crossed)
        snapshot = mirror.snapshot()
        assert seen(snapshot) == watched.truth()
        assert {lane.seq_id for lane in snapshot.lanes if lane.status == "running"} == {
            s.seq_id for s in watched.sequences if s.status is SequenceStatus.RUNNING
        }
        met |= {lane.status for lane in snapshot.lanes} | {BlockState(state).name for state in snapshot.block_states}
    return met


def test_the_mirror_shows_the_engine_as_it_is() -> None:
    met = set[str]()
    for seed in range(6):
        met |= check_against_truth((FULL,), seed)
    assert met >= {"running", "waiting", "preempted", "SHARED", "PRIVATE", "CACHED", "FREE"}


def test_the_mirror_follows_sliding_windows_in_several_groups() -> None:
    for seed in range(6):
        check_against_truth((FULL, sliding(6), sliding(10)), seed)


def test_nothing_is_taken_for_nobody_nor_twice_nor_too_early() -> None:
    watched = Watched((FULL,), 0)
    watched.harness.add(make_sequence(0, 5, 20))
    watched.step()
    assert watched.view.take(1.0) is None
    watched.view.set_watching(1, True)
    first = watched.view.take(2.0)
    assert first is not None
    assert first.layout is not None
    assert watched.view.take(3.0) is None, "nothing happened since"
    watched.step()
    assert watched.view.take(2.01) is None, "too early"
    second = watched.view.take(4.0)
    assert second is not None
    assert second.layout is None
    watched.view.set_watching(1, False)
    watched.step()
    assert watched.view.take(5.0) is None
    assert not watched.view.watchers


def test_a_second_watcher_makes_the_next_update_start_over() -> None:
    watched = Watched((FULL,), 0)
    watched.view.set_watching(1, True)
    assert watched.view.take(1.0) is not None
    watched.view.set_watching(2, True)
    update = watched.view.take(2.0)
    assert update is not None
    assert update.layout is not None
    watched.view.set_watching(1, False)
    assert watched.view.watchers


def test_steps_count_prefill_and_decode() -> None:
    watched = Watched((FULL,), 0)
    watched.view.set_watching(1, True)
    harness = watched.harness
    harness.add(make_sequence(0, 30, 20), make_sequence(1, 3, 20))
    for end in (1.0, 2.0, 3.0):
        plan, _ = harness.step()
        watched.view.note_step(plan, end - 0.25, end)
    update = watched.view.take(9.0)
    assert update is not None
    # The budget is 24: 24 of the long prompt; its last 6 and the short one; then one token each.
    counts = [(s.num_prefill_tokens, s.num_decode_tokens, s.num_sampled, s.num_rows) for s in update.steps]
    assert counts == [(24, 0, 0, 1), (9, 0, 2, 2), (0, 2, 2, 2)]
    assert [(s.end_time, s.duration) for s in update.steps] == [(1.0, 0.25), (2.0, 0.25), (3.0, 0.25)]


class FakeEngine:
    """Remembers who listens; a test plays the engine process."""

    def __init__(self) -> None:
        self.listener: Callable[[ViewUpdate], None] | None = None
        self.num_subscriptions = 0

    def set_view_listener(self, listener: Callable[[ViewUpdate], None] | None) -> None:
        self.listener = listener
        self.num_subscriptions += listener is not None


def make_update(watched: Watched) -> ViewUpdate:
    watched.act()
    update = watched.view.take(watched.now)
    while update is None:
        watched.act()
        update = watched.view.take(watched.now)
    return update


def test_watchers_share_a_subscription_and_a_slow_one_gets_the_newest_state() -> None:
    async def scenario() -> None:
        engine, watched = FakeEngine(), Watched((FULL,), 3)
        hub = ViewHub(engine)
        fast, slow = hub.join(), hub.join()
        assert engine.num_subscriptions == 1
        listener = engine.listener
        assert listener is not None
        watched.view.set_watching(1, True)
        mirror = EngineMirror()
        for _ in range(20):
            listener(make_update(watched))
            mirror.apply(msgspec.json.decode(await fast.next(), type=ViewUpdate))
        newest = seen(mirror.snapshot())
        whole = msgspec.json.decode(await slow.next(), type=ViewUpdate)
        assert whole.layout is not None
        assert seen(whole) == newest == watched.truth()
        late = msgspec.json.decode(await hub.join().next(), type=ViewUpdate)
        assert seen(late) == newest
        listener(make_update(watched))
        follow = msgspec.json.decode(await slow.next(), type=ViewUpdate)
        assert follow.layout is None, "who keeps up gets changes only"

    asyncio.run(scenario())


def test_the_last_to_leave_ends_the_subscription() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        hub = ViewHub(engine)
        one, two = hub.join(), hub.join()
        hub.leave(one)
        assert engine.listener is not None
        hub.leave(two)
        assert engine.listener is None
        assert hub.num_watchers == 0
        hub.join()
        assert engine.num_subscriptions == 2

    asyncio.run(scenario())


def test_updates_before_the_first_layout_are_left_out() -> None:
    """Those of the subscription before may still be on their way."""

    async def scenario() -> None:
        engine, watched = FakeEngine(), Watched((FULL,), 5)
        hub = ViewHub(engine)
        watcher = hub.join()
        listener = engine.listener
        assert listener is not None
        watched.view.set_watching(1, True)
        first = make_update(watched)
        listener(make_update(watched))
        listener(first)
        update = msgspec.json.decode(await watcher.next(), type=ViewUpdate)
        assert update.layout is not None

    asyncio.run(scenario())
