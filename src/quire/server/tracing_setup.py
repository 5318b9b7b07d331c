"""Traces are an extra: OpenTelemetry is imported only where an endpoint is given."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from quire.errors import InvalidRequestError
from quire.server.request_record import RequestRecord


class Tracer(Protocol):
    def trace(self, record: RequestRecord) -> None:
        """A request has ended."""

    def shutdown(self) -> None:
        """Send what is left."""


def make_tracer(endpoint: str | None) -> Tracer | None:
    """None without an endpoint. Raises InvalidRequestError if it is no URL or the packages are not installed."""
    if endpoint is None:
        return None
    try:
        module = importlib.import_module("quire.server.tracing")
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"otlp_endpoint needs OpenTelemetry, and {error.name} is not installed: pip install 'quire[otel]'.",
            field="otlp_endpoint",
            value=endpoint,
        ) from error
    return cast(Tracer, module.RequestTracer(endpoint))
