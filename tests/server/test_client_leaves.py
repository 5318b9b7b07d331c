"""Clients that leave before their answer is whole: what they asked for ends, and its blocks are free."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.running_server import RunningServer

ENDLESS: dict[str, Any] = {"prompt": "abc", "max_tokens": 8000, "ignore_eos": True}


def post_and_stay(server: RunningServer, body: dict[str, Any]) -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port or 80))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.real
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"prompt": ["abc", "def"]}])
def test_a_request_ends_with_its_client(real_server: RunningServer, stream: bool, more: dict[str, Any]) -> None:
    """Cases 1 and 2 of docs/security.md."""
    num_sequences = 3 if "n" in more else 2 if "prompt" in more else 1
    with post_and_stay(real_server, ENDLESS | more | {"stream": stream}) as connection:
        real_server.wait_for_load(num_sequences)
        if stream:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
    assert real_server.wait_for_load(0)["kv_cache_usage_perc"] == 0
