"""What the gate before all routes lets in, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.config import ServerConfig
from quire.server.access import KEY_NAME, Names, given_keys, is_own_origin, is_public, key_name
from quire.server.protection import BodyLimit, Gate

Headers = list[tuple[bytes, bytes]]
HERE = (b"host", b"localhost:8000")
OWN = (b"origin", b"http://localhost:8000")
FOREIGN = (b"origin", b"http://evil.example")


Layer = Callable[[ASGIApp], ASGIApp]


def asked(layer: Layer, headers: Headers) -> tuple[dict[str, Any], int, bytes]:
    """The scope, the status and the body; 200: it got through. Nothing of the request's body is read."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=200)(scope, receive, send)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}
    asyncio.run(layer(app)(scope, receive, send))  # type: ignore[arg-type]
    start, body = sent
    return scope, start["status"], body["body"]


def gate(**settings: Any) -> Layer:
    return lambda app: Gate(app, ServerConfig(**settings))


def limit(app: ASGIApp) -> ASGIApp:
    return BodyLimit(app, max_size=10)


def status(headers: Headers, **settings: Any) -> int:
    return asked(gate(**settings), headers)[1]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([HERE], 200),
        ([], 200),
        ([(b"host", b"")], 403),
        ([HERE, HERE], 403),
        ([HERE, (b"host", b"evil.example")], 403),
        ([HERE, OWN], 200),
        ([HERE, OWN, FOREIGN], 403),
        ([HERE, FOREIGN, OWN], 403),
        ([OWN], 403),
        ([HERE, (b"origin", b"http://evil-localhost:8000")], 403),
        ([HERE, (b"origin", b"http://localhost:8000.evil.example")], 403),
    ],
)
def test_one_host_of_ours_and_no_foreign_origin(headers: Headers, expected: int) -> None:
    assert status(headers) == expected


def test_any_origin_is_all_that_any_origin_allows() -> None:
    assert status([HERE, FOREIGN], allowed_origin=("*",)) == 200
    assert status([(b"host", b"evil.example"), FOREIGN], allowed_origin=("*",)) == 403
    assert status([HERE, FOREIGN], allowed_origin=("http://other.example",)) == 403


def test_who_was_let_in_has_the_name_of_the_key() -> None:
    scope, *_ = asked(gate(api_key=("a", "b")), [HERE, (b"x-api-key", b"b")])
    assert scope[KEY_NAME] == key_name(b"b")


@pytest.mark.parametrize(
    ("layer", "headers"),
    [
        (gate(), [(b"host", b"h" * 10_000)]),
        (gate(), [HERE, (b"origin", b"http://" + b"o" * 10_000)]),
        (limit, [(b"content-encoding", b"e" * 10_000)]),
    ],
    ids=["host", "origin", "encoding"],
)
def test_a_refusal_does_not_repeat_all_that_came(layer: Layer, headers: Headers) -> None:
    _, code, body = asked(layer, headers)
    assert code in (403, 415)
    assert len(body) < 500


def test_a_body_is_refused_by_its_head_unread() -> None:
    assert asked(limit, [(b"content-length", b"11")])[1] == 413
    assert asked(limit, [(b"content-length", b"10"), (b"content-encoding", b"Identity")])[1] == 200


def test_names_have_no_case_and_those_with_a_port_have_that_port() -> None:
    names = Names("Box.Lan", ["Quire", "other:8000"])
    assert all(names.include(host) for host in ("LOCALHOST:80", "box.LAN:80", "quire", "Other:8000"))
    assert not any(names.include(host) for host in ("evillocalhost", "localhost:a", "other:9", "other"))
    assert is_own_origin("http://box.lan", "Box.Lan")


def test_only_bearers_have_keys() -> None:
    assert given_keys([(b"authorization", b"Basic sesame"), (b"cookie", b"sesame")]) == []
    assert given_keys([(b"authorization", b"BEARER  a "), (b"x-api-key", b" b ")]) == [b"a", b"b"]


def test_a_keys_name_is_its_own_and_does_not_tell_it() -> None:
    names = {key_name(b"sesame-%d" % number) for number in range(1000)}
    assert len(names) == 1000
    assert not any("sesame" in name for name in names)


@pytest.mark.parametrize("path", ["/page", "/pages/x", "/healthy", "/health/", "/health/live/x", ""])
def test_what_begins_like_a_public_path_is_none(path: str) -> None:
    assert not is_public("GET", path)
