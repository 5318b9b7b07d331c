"""The sockets between a client and the engine process: messages out, messages in."""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq

from quire.core.wire import Answer, Delta, EngineStatus, FromEngine, StepOutputs, ToEngine
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.frames import BadFrameError, Frames, Message
from quire.errors import EngineDeadError

LISTEN_S = 0.5
"""How long `receive` waits for something to come."""
MAX_FRAMES_AT_ONCE = 16
"""Few enough that the event loop, which shares a lock, and the heartbeats, which wait, are not held up."""


@dataclass(slots=True)
class Received:
    """What came at one time, in order. Several steps are taken as one: whoever fell behind the engine catches up."""

    statuses: list[EngineStatus]
    answers: list[Answer] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    engine_ended: bool = False

    @property
    def nothing(self) -> bool:
        return not (self.statuses or self.answers or self.deltas)


class EngineLink:
    """A socket belongs to one thread: `send` is the event loop's, `receive` and `reply` are the reader's.

    `engine_fd` is the end of a pipe that carries nothing. The engine holds its other end: when that closes, it is gone.
    """

    def __init__(self, addresses: EngineAddresses, client: int, engine_fd: int) -> None:
        self._engine_fd = engine_fd
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = self._connect(zmq.PUSH, addresses.requests)
        self._replies = self._connect(zmq.PUSH, addresses.requests)
        self._outputs = self._connect(zmq.PULL, addresses.outputs(client))
        self._heartbeats = self._connect(zmq.SUB, addresses.status)
        self._heartbeats.subscribe(b"")
        self._poller = zmq.Poller()
        for source in (self._outputs, self._heartbeats, engine_fd):
            self._poller.register(source, zmq.POLLIN)
        self._outbound: Frames[ToEngine] = Frames(ToEngine)
        self._inbound: Frames[FromEngine] = Frames(FromEngine)
        self._statuses: Frames[EngineStatus] = Frames(EngineStatus)

    def send(self, message: ToEngine) -> None:
        """Without waiting. Raises EngineDeadError."""
        try:
            self._requests.send(self._outbound.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise EngineDeadError(f"The engine process cannot be reached: {error}.") from error

    def reply(self, message: ToEngine) -> None:
        """`send` for the reader, of what follows from the messages it read."""
        self._replies.send(self._outbound.encode(message), zmq.NOBLOCK)

    def receive(self) -> Received:
        """Waits a little for something to come."""
        events = dict(self._poller.poll(int(1000 * LISTEN_S)))
        received = Received(self._drain(self._heartbeats, self._statuses) if self._heartbeats in events else [])
        for message in self._drain(self._outputs, self._inbound) if self._outputs in events else ():
            if isinstance(message, StepOutputs):
                received.deltas += message.deltas
            else:
                received.answers.append(message)
        received.engine_ended = self._engine_fd in events
        return received

    def close(self) -> None:
        """Once the reader has stopped; idempotent."""
        for socket in (self._requests, self._replies, self._outputs, self._heartbeats):
            socket.close(linger=0)
        self._context.term()

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        return socket

    def _drain(self, socket: zmq.Socket[bytes], frames: Frames[Message]) -> list[Message]:
        """The messages that have come; bad frames are dropped."""
        messages: list[Message] = []
        for _ in range(MAX_FRAMES_AT_ONCE):
            try:
                messages.append(frames.decode(socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
            except BadFrameError:
                continue
        return messages
