"""Where a server is and how to speak to it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import msgspec

from quire.errors import InvalidRequestError, QuireError, in_words

DEFAULT_URL = "http://127.0.0.1:8000"
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is none, and for what is nested deeper than Python goes."""
MAX_SHOWN = 300
"""Characters of a server's answer that a message quotes."""


class RemoteError(QuireError):
    """The server could not be reached, refused, or broke off."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`root` is the URL that `/v1/...` is appended to, without a slash at its end."""

    root: str
    api_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    @property
    def is_tls(self) -> bool:
        return self.root.startswith("https:")

    @property
    def host(self) -> str:
        return urlsplit(self.root).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.root).port or (443 if self.is_tls else 80)


def parse_address(url: str, api_key: str | None = None) -> ServerAddress:
    """`http://host:port`, with or without `/v1`. Raises InvalidRequestError."""
    if not _names_a_server(url):
        raise InvalidRequestError(f"A server is named like {DEFAULT_URL}, got {url!r}.", field="url", value=url)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequestError("An API key is printable ASCII, or HTTP cannot carry it.", field="api_key")
    scheme, separator, rest = url.partition("://")
    root = scheme.lower() + separator + rest
    return ServerAddress(root.rstrip("/").removesuffix("/v1").rstrip("/"), api_key)


def _names_a_server(url: str) -> bool:
    if not url.isprintable() or any(mark in url for mark in " ?#"):
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        # What the resolver and the HTTP client would raise at the first request: labels that are empty or too long.
        host.encode("idna")
        readable = httpx.URL(url).host != ""
    except (ValueError, httpx.InvalidURL):
        return False
    return readable and parts.scheme in ("http", "https") and port != 0 and parts.username is None


def fetch(http: httpx.Client, address: ServerAddress, path: str) -> httpx.Response:
    """The answer, whatever its status. Raises RemoteError where nobody answers, or only those who have a key."""
    try:
        answer = http.get(address.root + path, headers=address.headers)
    except httpx.HTTPError as error:
        raise RemoteError(
            f"No server answers at {address.root}: {in_words(error)}; start one with `quire serve`."
        ) from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise RemoteError(f"The server at {address.root} wants a key: add --api-key KEY.")
    return answer


def error_sentence(error: object) -> str:
    """The server's own sentence where its error is in OpenAI's shape, else all of it."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)


def shorten(text: str) -> str:
    """One line of at most MAX_SHOWN characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN else line[:MAX_SHOWN] + "..."
