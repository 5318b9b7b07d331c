"""Who may call: API keys, the names this server goes by, and the web pages that may use a visitor's browser for it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence

Headers = Iterable[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""

PUBLIC_PATHS = frozenset(("/", "/health", "/health/live", "/health/ready", "/ping"))
"""What needs no key: probes, and the page, whose files tell nothing and which asks its user for the key."""
PUBLIC_FOLDER = "/page/"
PUBLIC_METHODS = frozenset(("GET", "HEAD"))
ANY = "*"
KEY_NAME = "quire.key_name"
"""Where the scope of a request says which key let it in."""


def is_public(method: str, path: str) -> bool:
    """`path` is the one that is routed by. No other route may be reached without a key."""
    return method in PUBLIC_METHODS and (path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER))


class KeyRing:
    """The API keys. Only their SHA-256 is kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        """Whether there are any; else everybody may call."""
        return bool(self._digests)

    def find(self, headers: Headers) -> bytes | None:
        """The key that a header holds, however that spells it. The time depends neither on which one it is nor on how much of
        it is right."""
        found = None
        for given in given_keys(headers):
            digest = _digest(given)
            for key in self._digests:
                if hmac.compare_digest(digest, key):
                    found = given
        return found


def key_name(key: bytes) -> str:
    """What counts and logs call whoever has the key: it does not tell the key."""
    return "key-" + _digest(key).hex()[:16]


def given_keys(headers: Headers) -> list[bytes]:
    """Those that headers hold, right or not."""
    keys = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Names:
    """Host headers that mean this server. A page of an attacker whose name resolves to it (DNS rebinding) has another.

    Addresses are no names: nobody can make a browser send one that is not where it is going.
    """

    def __init__(self, bound_host: str, allowed: Sequence[str]) -> None:
        own = {"localhost", bound_host, socket.gethostname()}
        self._names = {name.lower() for name in (*own, *allowed)}
        self._any = ANY in allowed

    def include(self, host: str) -> bool:
        """`host`: a Host header, with or without a port."""
        if self._any:
            return True
        name = _without_port(host).lower()
        return name in self._names or host.lower() in self._names or name.endswith(".localhost") or _is_address(name)


def is_own_origin(origin: str, host: str) -> bool:
    """Does a page of `origin` come from where the request went? A proxy may have taken the TLS off: schemes may differ."""
    return bool(host) and origin.partition("://")[2].lower() == host.lower()


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and not (":" in name and not name.endswith("]")) else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
