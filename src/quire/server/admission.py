"""Who may start a request: limits on the unfinished ones, in all and of one client, and nobody while draining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import QuireError

RETRY_AFTER_S = 1


class OverloadedError(QuireError):
    """Too many requests; the server answers 429 with Retry-After."""


class DrainingError(QuireError):
    """The server is about to stop; it answers 503 with Retry-After."""


class Admission:
    """Counts the unfinished requests of one API process."""

    def __init__(self, max_requests: int, max_client_requests: int) -> None:
        self._max_requests = max_requests
        self._max_client_requests = max_client_requests
        self._by_client: Counter[str] = Counter()
        self.num_unfinished = 0
        self.draining = False

    @contextmanager
    def enter(self, client: str) -> Iterator[None]:
        """Hold the place of a request of a client. Raises OverloadedError or DrainingError."""
        if self.draining:
            raise DrainingError("The server is shutting down and takes no new requests; ask another replica.")
        if self.num_unfinished >= self._max_requests:
            raise OverloadedError(
                f"{self.num_unfinished} requests are unfinished, the limit is {self._max_requests}"
                " (--max-queued-requests); try again later."
            )
        if self._by_client[client] >= self._max_client_requests:
            raise OverloadedError(
                f"You have {self._by_client[client]} unfinished requests, the limit is {self._max_client_requests}"
                " (--max-client-requests); wait for some of them."
            )
        self.num_unfinished += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self.num_unfinished -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]
