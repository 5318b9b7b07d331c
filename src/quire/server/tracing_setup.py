"""Traces are an extra: OpenTelemetry is imported only where an endpoint is given."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

from quire.errors import InvalidRequestError
from quire.server.request_record import RequestRecord

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""Its package depends on all the others."""


class Tracer(Protocol):
    def trace(self, record: RequestRecord) -> None:
        """A request has ended."""

    def shutdown(self) -> None:
        """Send what is left."""


def check_endpoint(endpoint: str) -> None:
    """Raises InvalidRequestError if it is no URL or the packages are not installed, which are looked for and not imported."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequestError(
            f"--otlp-endpoint must be an http:// or https:// URL, such as http://127.0.0.1:4318, got {endpoint!r}.",
            field="otlp_endpoint",
            value=endpoint,
        )
    try:
        found = find_spec(EXPORTER) is not None
    except ModuleNotFoundError as error:
        raise _missing(error.name, endpoint) from error
    if not found:
        raise _missing(EXPORTER, endpoint)


def make_tracer(endpoint: str | None) -> Tracer | None:
    """None without an endpoint. Raises InvalidRequestError if it is no URL or the packages are not installed."""
    if endpoint is None:
        return None
    check_endpoint(endpoint)
    try:
        from quire.server.tracing import RequestTracer
    except ModuleNotFoundError as error:
        raise _missing(error.name, endpoint) from error
    return RequestTracer(endpoint)


def _missing(package: str | None, endpoint: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"otlp_endpoint needs OpenTelemetry, and {package} is not installed: pip install 'quire[otel]'.",
        field="otlp_endpoint",
        value=endpoint,
    )
