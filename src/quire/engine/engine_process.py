"""The engine in a process of its own: `python -m quire.engine.engine_process`, its orders as JSON on stdin."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from quire.config import EngineConfig
from quire.core.wire import (
    AbortRequest,
    AddRequest,
    AnyRequest,
    CallAnswer,
    Delta,
    FinishSample,
    FromEngine,
    Hello,
    RequestRefused,
    RequestsDropped,
    ResetPrefixCache,
    SampleDelta,
    StepOutputs,
    ToEngine,
    ViewMessage,
    Watch,
    Welcome,
)
from quire.engine.encode_engine import EncodeEngine
from quire.engine.engine import Engine
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.frames import BadFrameError, Frames
from quire.engine.heartbeat import Heartbeat
from quire.engine.launch import LaunchedEngine, launch
from quire.engine.parent_watch import LEAVE, leave_with_parent
from quire.engine.requests_in_progress import id_in_use
from quire.engine.stats import STATS_INTERVAL_S, collect_stats
from quire.errors import InvalidRequestError, QuireError
from quire.host.collector import made_to_last

logger = logging.getLogger("quire")

IDLE_WAIT_MS = 100
MAX_UNREAD_MESSAGES = 10_000
"""Messages a client may leave unread: some minutes of steps."""
READER_WAIT_MS = 1000
"""How long it is waited for when it has, before its requests are dropped."""


class EngineOrders(msgspec.Struct, frozen=True):
    """`parent_fd` is the end of a pipe whose other end the parent holds: when it closes, the parent is gone."""

    config: EngineConfig
    executor: str
    directory: str
    num_clients: int
    parent_fd: int
    log_level: int


@dataclass(slots=True)
class Client:
    """One API process."""

    socket: zmq.Socket[bytes]
    """Which it reads."""
    owed: list[FromEngine] = field(default_factory=list)
    """What it waits for and must still be told, once it reads again."""


class EngineService:
    """Feeds the engine from a socket and tells each client what became of its requests."""

    def __init__(
        self,
        engine: Engine | EncodeEngine,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: EngineAddresses,
        num_clients: int,
        heartbeat: Heartbeat,
    ) -> None:
        self._engine = engine
        self._heartbeat = heartbeat
        self._requests = context.socket(zmq.PULL)
        self._requests.setsockopt(zmq.RCVHWM, 0)
        self._requests.bind(addresses.requests)
        self._clients = [Client(_outputs_socket(context, addresses.outputs(i))) for i in range(num_clients)]
        self._owners: dict[str, int] = {}
        """The client of each request, by its id."""
        self._inbound: Frames[ToEngine] = Frames(ToEngine)
        self._outbound: Frames[FromEngine] = Frames(FromEngine)
        engine.view.while_computing = self._show_view
        self._stats_time = 0.0
        self.num_bad_frames = 0
        self.stopping = False

    def run(self) -> None:
        """Until told to stop. Raises EngineDeadError if a step fails."""
        while not self.stopping:
            self._receive()
            if self._engine.has_unfinished:
                self._heartbeat.step_start_time = time.monotonic()
                deltas = self._engine.step()
                self._heartbeat.step_start_time = None
                self._send_deltas(deltas)
            self._show()

    def _receive(self) -> None:
        """Take what has come; wait a little if there is nothing else to do."""
        if not self._engine.has_unfinished:
            self._requests.poll(IDLE_WAIT_MS)
        while True:
            try:
                frame = self._requests.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._inbound.decode(frame)
                self._check_client(message)
            except BadFrameError as error:
                self.num_bad_frames += 1
                logger.warning("Dropped bad frame %d on the engine's socket: %s", self.num_bad_frames, error)
                continue
            self._obey(message)

    def _check_client(self, message: ToEngine) -> None:
        """Raises BadFrameError where there is none of that number."""
        if not isinstance(message, FinishSample) and not 0 <= message.client < len(self._clients):
            raise BadFrameError(f"There is no client {message.client}.")

    def _obey(self, message: ToEngine) -> None:
        match message:
            case Hello(client):
                # Not open yet in this direction: it will ask again.
                with suppress(zmq.Again):
                    self._clients[client].socket.send(self._outbound.encode(Welcome()), zmq.NOBLOCK)
            case AddRequest(client, request):
                self._add(client, request)
            case AbortRequest(client, request_id):
                if self._owners.get(request_id, client) == client:
                    self._engine.abort(request_id)
                    self._owners.pop(request_id, None)
            case FinishSample(request_id, index, stop_reason):
                self._engine.finish_sample(request_id, index, stop_reason)
                self._forget_finished(request_id)
            case ResetPrefixCache(client, call_id):
                answer = CallAnswer(call_id, self._engine.reset_prefix_cache())
                if not self._send(client, answer):
                    self._clients[client].owed.append(answer)
            case Watch(client, enabled):
                self._engine.view.set_watching(client, enabled)

    def _add(self, client: int, request: AnyRequest) -> None:
        request_id = request.request_id
        try:
            if request_id in self._owners:
                raise id_in_use(request_id)
            self._engine.add_request(request)
        except InvalidRequestError as error:
            value = error.value if isinstance(error.value, int | float | str) else None
            if not self._send(client, RequestRefused(request_id, str(error), error.field, value)):
                self._clients[client].owed.append(RequestsDropped([request_id]))
            return
        self._owners[request_id] = client

    def _send_deltas(self, deltas: Iterable[Delta]) -> None:
        by_client: dict[int, list[Delta]] = {}
        ended: set[str] = set()
        for delta in deltas:
            client = self._owners.get(delta.request_id)
            if client is not None:
                by_client.setdefault(client, []).append(delta)
                if not isinstance(delta, SampleDelta) or delta.finish_reason is not None:
                    ended.add(delta.request_id)
        for client, of_client in by_client.items():
            self._send(client, StepOutputs(of_client))
        # Only now: several samples of a request may end in one step, and who did not hear of the end must be told later.
        for request_id in ended:
            self._forget_finished(request_id)

    def _send(self, client: int, message: FromEngine) -> bool:
        """A client that falls behind is waited for, a little; the engine must not run away from it. False: it had no room."""
        socket = self._clients[client].socket
        frame = self._outbound.encode(message)
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            if client in self._owners.values() and socket.poll(READER_WAIT_MS, zmq.POLLOUT):
                socket.send(frame)
            else:
                self._drop_requests(client)
                return False
        return True

    def _drop_requests(self, client: int) -> None:
        """A client that does not read must not hold memory for ever, nor hold up the others."""
        request_ids = [request_id for request_id, owner in self._owners.items() if owner == client]
        if request_ids:
            logger.warning(
                "API process %d has gone, or reads no more: its %d requests are dropped.", client, len(request_ids)
            )
            self._clients[client].owed.append(RequestsDropped(request_ids))
        for request_id in request_ids:
            self._engine.abort(request_id)
            del self._owners[request_id]

    def _send_owed(self) -> None:
        for client in self._clients:
            while client.owed and client.socket.poll(0, zmq.POLLOUT):
                client.socket.send(self._outbound.encode(client.owed.pop(0)))

    def _forget_finished(self, request_id: str) -> None:
        if not self._engine.has_request(request_id):
            self._owners.pop(request_id, None)

    def _show(self) -> None:
        """Stats for the heartbeat, and the view after the last step; a few times a second."""
        now = time.monotonic()
        if now - self._stats_time >= STATS_INTERVAL_S or not self._engine.has_unfinished:
            self._stats_time = now
            self._send_owed()
            self._heartbeat.stats = collect_stats(self._engine)
        if not self._engine.has_unfinished:
            self._show_view()

    def _show_view(self) -> None:
        """For those who watch; between two steps of a busy engine nothing waits for it."""
        update = self._engine.view.take(time.monotonic())
        if update is not None:
            message = ViewMessage(update)
            for watcher in self._engine.view.watchers:
                self._send(watcher, message)


def _outputs_socket(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_MESSAGES)
    socket.bind(address)
    return socket


def main() -> int:
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineOrders)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("huggingface_hub").propagate = False  # It prints its own log.
    logger.setLevel(orders.log_level)
    # Until it serves, LEAVE ends it at once, as it ends whoever has no handler.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    leave_with_parent(orders.parent_fd, orders.directory)
    addresses = EngineAddresses(orders.directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    heartbeat = Heartbeat(context, addresses.status)
    try:
        with made_to_last():
            launched = launch(orders.config, orders.executor, on_files_ready=lambda: heartbeat.enter("loading"))
    except QuireError as error:
        heartbeat.enter("failed")
        print(f"error: {error}", file=sys.stderr, flush=True)
        heartbeat.stop()
        return 1
    return _serve(launched, context, addresses, orders.num_clients, heartbeat)


def _serve(
    launched: LaunchedEngine,
    context: zmq.Context[zmq.Socket[bytes]],
    addresses: EngineAddresses,
    num_clients: int,
    heartbeat: Heartbeat,
) -> int:
    service = EngineService(launched.client.engine, context, addresses, num_clients, heartbeat)

    def stop(*_: Any) -> None:
        service.stopping = True

    signal.signal(LEAVE, stop)
    heartbeat.info = launched.info
    heartbeat.enter("ready")
    try:
        service.run()
    except Exception:
        logger.exception("The engine stopped.")
        heartbeat.enter("failed")
        heartbeat.stop()
        return 1
    heartbeat.stop()
    launched.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
