"""Where an engine process and its clients meet: ZMQ sockets in one directory that only this user may enter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineAddresses:
    """`directory` is private (0700) and short: a socket's path has room for some 100 bytes."""

    directory: str

    @property
    def requests(self) -> str:
        """Clients push ToEngine messages, the engine pulls."""
        return f"ipc://{self.directory}/requests"

    def outputs(self, client: int) -> str:
        """The engine pushes FromEngine messages, one client pulls."""
        return f"ipc://{self.directory}/outputs-{client}"

    @property
    def status(self) -> str:
        """The engine publishes EngineStatus."""
        return f"ipc://{self.directory}/status"
