"""What the supervisor tells an API process to do."""

from __future__ import annotations

import msgspec

from quire.config import EngineConfig, ServerConfig


class ApiOrders(msgspec.Struct, frozen=True):
    """`listener_fd`: the listening socket. The other two are ends of pipes that close with their process."""

    engine: EngineConfig
    server: ServerConfig
    directory: str
    worker: int
    listener_fd: int
    parent_fd: int
    engine_fd: int
    log_level: int
