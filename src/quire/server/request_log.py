"""Log lines as text or JSON, written so that a full disk or a closed pipe never reaches a request.

One line a request when it ends. Never in a line: API keys, prompts, outputs; tenants only as a hash.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import select
from datetime import UTC, datetime
from typing import Any

from quire.config import LogFormat
from quire.server.request_record import RequestRecord

LOGGERS = ("quire", "uvicorn.error", "opentelemetry")
STDERR = 2
READER_PATIENCE_MS = 100
"""Until the pipe can be written to, unless it could not the last time."""

logger = logging.getLogger("quire.requests")

PLAIN = re.compile(r"[\w.:/+-]+", re.ASCII)
"""What may stand in a text line as it is; the rest is quoted, so that no client writes lines or escape codes."""


class LineHandler(logging.Handler):
    """Writes whole lines to a file descriptor. A line that cannot be written is dropped; the next is tried.

    Straight to the descriptor: a buffer would keep what failed and fail again, at exit too. Whoever reads a pipe is
    waited for, a little; one that has stopped reading holds nobody up.
    """

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLOUT)
        self._patience_ms = READER_PATIENCE_MS

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
            while line:
                if not self._poller.poll(self._patience_ms):
                    self._patience_ms = 0
                    return
                # A pipe that can be written to has room for so much.
                line = line[os.write(self._descriptor, line[: select.PIPE_BUF]) :]
            self._patience_ms = READER_PATIENCE_MS
        except OSError:
            return
        except Exception:
            self.handleError(record)


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, and the fields given as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False)


class TextFormatter(logging.Formatter):
    """`10:22:33 message key=value ...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items() if value is not None)
        return super().format(record) + fields


FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure_logging(log_format: LogFormat, descriptor: int = STDERR) -> None:
    """Send this process's logs there, in that format; replaces the handlers of before."""
    handler = LineHandler(descriptor)
    handler.setFormatter(FORMATTERS[log_format]())
    for name in LOGGERS:
        named = logging.getLogger(name)
        named.handlers = [handler]
        named.propagate = False


def log_request(record: RequestRecord) -> None:
    """The one line of a request."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("request", extra={"fields": request_fields(record)})


def request_fields(record: RequestRecord) -> dict[str, Any]:
    """What the line says; times in milliseconds."""
    return {
        "request_id": record.request_id,
        "client_id": record.origin.x_request_id,
        "tenant": tenant_hash(record.origin.tenant),
        "route": record.origin.route,
        "model": record.model,
        "status": record.status,
        "finish_reason": record.finish_reason,
        "error": record.error,
        "stream": record.origin.stream,
        "n": record.n,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "generation_tokens": record.num_generation_tokens,
        "preemptions": record.num_preemptions,
        "queue_ms": _ms(record.queue_s),
        "prefill_ms": _ms(record.prefill_s),
        "ttft_ms": _ms(record.ttft_s),
        "tpot_ms": _ms(record.tpot_s),
        "e2e_ms": _ms(record.e2e_s),
    }


def tenant_hash(tenant: str) -> str | None:
    """Enough to tell tenants apart; a name that a client chose may say who somebody is."""
    if not tenant:
        return None
    return hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = record.__dict__.get("fields", {})
    return fields


def _plain(value: object) -> str:
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)
