"""One subscription to the engine view, shared by all who watch through this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

import msgspec

from quire.core.view import MAX_STEPS_KEPT, StepRecord, TableChange, ViewUpdate
from quire.engine.remote_engine import RemoteEngine
from quire.errors import EngineDeadError


class EngineMirror:
    """The engine as the updates so far describe it, for watchers that come late or missed some."""

    def __init__(self) -> None:
        self._last: ViewUpdate | None = None
        self._states = bytearray()
        self._tables: dict[int, list[TableChange]] = {}
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS_KEPT)

    @property
    def ready(self) -> bool:
        return self._last is not None

    def apply(self, update: ViewUpdate) -> None:
        """Before the first layout nothing can be placed, and nothing is."""
        layout = update.layout
        if layout is not None:
            self._steps.clear()
            self._tables.clear()
            self._states[:] = update.block_states
        elif self._last is None:
            return
        else:
            layout = self._last.layout
            for block, state in zip(update.changed_blocks, update.block_states, strict=True):
                self._states[block - 1] = state
        self._last = msgspec.structs.replace(update, layout=layout)
        self._steps.extend(update.steps)
        before, self._tables = self._tables, {}
        for lane in update.lanes:
            tables = _apply_changes(before.get(lane.seq_id), lane.tables)
            if tables:
                self._tables[lane.seq_id] = tables

    def snapshot(self) -> ViewUpdate:
        """One update that needs nothing before it."""
        assert self._last is not None, "nothing was applied yet"
        return msgspec.structs.replace(
            self._last,
            steps=list(self._steps),
            changed_blocks=[],
            block_states=bytes(self._states),
            lanes=[
                msgspec.structs.replace(lane, tables=self._tables.get(lane.seq_id, [])) for lane in self._last.lanes
            ],
        )


def _apply_changes(tables: list[TableChange] | None, changes: list[TableChange] | None) -> list[TableChange] | None:
    if changes is None:
        return tables
    if not changes or not tables:
        return changes
    return [
        TableChange(0, change.first_kept, table.block_ids[: change.start] + change.block_ids)
        for table, change in zip(tables, changes, strict=True)
    ]


class Watcher:
    """One reader. It has at most one update waiting: if another comes, both give way to a snapshot of the newest."""

    def __init__(self, mirror: EngineMirror) -> None:
        self._mirror = mirror
        self._update: bytes | None = None
        self._needs_snapshot = True
        self._news = asyncio.Event()
        if mirror.ready:
            self._news.set()

    def offer(self, encoded: bytes) -> None:
        if self._update is not None:
            self._needs_snapshot = True
        self._update = encoded
        self._news.set()

    async def next(self) -> bytes:
        """The next update as JSON, waiting for it."""
        await self._news.wait()
        self._news.clear()
        encoded, self._update = self._update, None
        if self._needs_snapshot or encoded is None:
            self._needs_snapshot = False
            encoded = msgspec.json.encode(self._mirror.snapshot())
        return encoded


class ViewHub:
    """Listens to the engine only while it has watchers."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._mirror = EngineMirror()
        self._watchers: set[Watcher] = set()

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Raises EngineDeadError if there is nothing to watch any more."""
        watcher = self.join()
        try:
            yield watcher
        finally:
            self.leave(watcher)

    def join(self) -> Watcher:
        if not self._watchers:
            self._engine.set_view_listener(self._on_update)
        watcher = Watcher(self._mirror)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            with contextlib.suppress(EngineDeadError):
                self._engine.set_view_listener(None)
            self._mirror = EngineMirror()

    def _on_update(self, update: ViewUpdate) -> None:
        self._mirror.apply(update)
        if not self._mirror.ready:
            return
        encoded = msgspec.json.encode(update)
        for watcher in self._watchers:
            watcher.offer(encoded)
