"""What an API process asks of the system; whole ones are in robustness/test_processes.py."""

from __future__ import annotations

import logging
import os
import resource
import socket

import pytest

from quire.config import EngineConfig, ServerConfig
from quire.server.api_orders import ApiOrders
from quire.server.api_process import KEEP_ALIVE_S, _listener, _raise_file_limit
from quire.server.supervisor import listen


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_a_client_that_takes_nothing_more_is_given_up_by_the_system() -> None:
    server = ServerConfig(reader_timeout=7)
    with listen("127.0.0.1", 0) as given:
        orders = ApiOrders(EngineConfig(model="any"), server, "", 0, os.dup(given.fileno()), 0, 0, logging.INFO)
        with (
            _listener(orders) as listener,
            socket.create_connection(listener.getsockname()),
            listener.accept()[0] as end,
        ):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == (7 + KEEP_ALIVE_S) * 1000


def test_it_has_as_many_files_as_its_user_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        allowed = _raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert allowed == (2**20 if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
