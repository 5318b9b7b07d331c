"""Who may call which route, by the rows of the advisories on keys, hosts, origins and leaks."""

from __future__ import annotations

import getpass
import hmac
import random
import re
import string

import httpx
import pytest
from starlette.routing import Route
from tests.server.own_server import OwnServer, exchange, own_server, status_line
from tests.server.security.conftest import KEYS

from quire.config import ServerConfig
from quire.errors import InvalidRequestError
from quire.server import access
from quire.server.access import KeyRing, Names, is_own_origin
from quire.server.routes import ROUTERS, management

PUBLIC = {"/", "/page/{name}", "/health", "/health/live", "/health/ready", "/ping"}
ROUTES = [
    (method, route.path)
    for router in (*ROUTERS, management.router)
    for route in router.routes
    if isinstance(route, Route)
    for method in sorted(route.methods or ())
]
LEAKS = re.compile(
    r"/(home|root|usr|tmp|var|work|opt)/|\.py\b|0x[0-9a-f]{6,}|Traceback|" + re.escape(getpass.getuser())
)


def concrete(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


@pytest.mark.parametrize("key", KEYS)
def test_cve_2025_59425_each_key_opens_through_either_header(guarded: OwnServer, key: str) -> None:
    with guarded.client(headers={}) as client:
        for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"X-Api-Key": key}):
            assert client.get("/v1/models", headers=headers).status_code == 200
    assert key not in guarded.log()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Authorization: Bearer \r\n",
        b"Authorization: Bearer\r\n",
        b"Authorization: sesame-1\r\n",
        b"Authorization: Basic sesame-1\r\n",
        b"Authorization: Bearer sesame-\r\n",
        b"Authorization: Bearer sesame-11\r\n",
        b"Authorization: Bearer SESAME-1\r\n",
        b"Authorization: Bearer sesame-1 sesame-2\r\n",
        b"Authorization: Bearer s\xc3\xa9same-1\r\n",
        b"Authorization: Bearer \xff\xfe\r\n",
        b"x-api-key: \xe2\x98\x83\r\n",
        b"x-api-key: " + b"k" * 20_000 + b"\r\n",
    ],
)
def test_cve_2025_59425_anything_else_is_401(guarded: OwnServer, header: bytes) -> None:
    request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header + b"\r\n"
    answer = exchange(guarded.port, request)
    assert status_line(answer) == 401
    assert b'"authentication_error"' in answer
    assert not LEAKS.search(guarded.log().rpartition("maximum concurrency")[2])


def test_cve_2025_59425_all_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare_digest = hmac.compare_digest

    def compare(given: bytes, key: bytes) -> bool:
        assert isinstance(given, bytes)
        assert len(given) == len(key)
        compared.append(key)
        return compare_digest(given, key)

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    ring = KeyRing(["a", "b", "c" * 100])
    for given, opens in ((b"a", True), (b"c" * 100, True), (b"", False), (b"\xff", False)):
        compared.clear()
        assert (ring.find([(b"x-api-key", given)]) is not None) is opens
        assert len(set(compared)) == len(compared) == 3


@pytest.mark.parametrize("key", ["", " ", "a b ", "schlüssel", "a\nb"])
def test_cve_2025_59425_a_key_nobody_could_send_is_no_key(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="printable ASCII") as caught:
        ServerConfig(api_key=("good", key))
    assert key.strip() == "" or key not in str(caught.value)


@pytest.mark.parametrize("host", ["x/?", "x/health?", "localhost/health#", "localhost:1/?", "/health", "", "a b"])
def test_cve_2026_48746_the_host_header_moves_no_path(guarded: OwnServer, host: str) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    assert status_line(exchange(guarded.port, request)) in (400, 401)


@pytest.mark.parametrize(
    "target",
    [
        "/health/../v1/models",
        "/page/../v1/models",
        "//v1/models",
        "/v1/models/",
        "/V1/models",
        "/v1%2fmodels",
        "/page/%2e%2e/v1/models",
        "http://localhost/v1/models",
        "/;/v1/models",
    ],
)
def test_cve_2026_48746_no_spelling_of_a_path_goes_past_the_key(guarded: OwnServer, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    answer = exchange(guarded.port, request)
    assert status_line(answer) in (400, 401, 404)
    assert b'"object":"list"' not in answer


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_vllm_security_notes_every_route_needs_a_key_but_the_public_ones(
    guarded: OwnServer, method: str, path: str
) -> None:
    with guarded.client(headers={}) as client:
        status = client.request(method, concrete(path)).status_code
        assert (status == 401) is (path not in PUBLIC)
        # The list is of reading: no other method gets through.
        assert client.request("POST", concrete(path)).status_code == 401


def test_the_document_of_the_api_needs_a_key(guarded: OwnServer) -> None:
    with guarded.client(headers={}) as client:
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/docs").status_code == 401


def test_management_is_off_by_default_and_never_without_a_key(guarded: OwnServer) -> None:
    with pytest.raises(InvalidRequestError, match="needs an api_key"):
        ServerConfig(enable_management=True)
    with guarded.client() as client:
        assert client.post("/reset_prefix_cache").json() == {"success": True}
    assert not any(
        path == "/reset_prefix_cache" for router in ROUTERS for path in (getattr(r, "path", "") for r in router.routes)
    )


@pytest.mark.parametrize(
    "body", [b"{", b'{"model": }', b"\xff\xfe", b"[" * 100_000, b'"' + b"a" * 70_000, b"null", b"{}" * 2]
)
def test_cve_2026_54236_errors_tell_nothing_of_this_machine(guarded: OwnServer, body: bytes) -> None:
    with guarded.client() as client:
        for path in sorted({path for method, path in ROUTES if method == "POST"} - {"/reset_prefix_cache"}):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, (path, answer.text)
            assert not LEAKS.search(answer.text), (path, answer.text)
            assert len(answer.text) < 2000


def test_cve_2026_105759_no_request_makes_a_metric_series(guarded: OwnServer) -> None:
    def series(client: httpx.Client) -> set[str]:
        return {
            line.rpartition(" ")[0] for line in client.get("/metrics").text.splitlines() if "http_responses" in line
        }

    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choices(string.ascii_uppercase, k=8))

    head = f"Host: localhost\r\nAuthorization: Bearer {KEYS[0]}\r\n"

    def batch(client: httpx.Client, count: int) -> None:
        for path in (*(f"/v1/models/{word()}" for _ in range(count)), f"/{word()}"):
            assert client.get(path, headers={f"X-{word()}": word()}).status_code == 404
        assert status_line(exchange(guarded.port, f"{word()} / HTTP/1.1\r\n{head}\r\n".encode())) == 400

    with guarded.client() as client:
        batch(client, 1)
        before = series(client) | series(client)
        for _ in range(20):
            batch(client, 100)
        assert series(client) == before


def test_cve_2024_28224_it_listens_on_loopback_unless_told_otherwise(guarded: OwnServer) -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert "http://127.0.0.1:" in guarded.log()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_cve_2024_28224_a_page_whose_name_was_bound_anew_gets_nothing(guarded: OwnServer, host: str) -> None:
    with guarded.client() as client:
        for path in ("/", "/health", "/v1/models"):
            assert client.get(path, headers={"Host": host}).status_code == 403
            assert client.get(path, headers={"Host": host, "Origin": f"http://{host}"}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1", ""])
def test_cve_2025_62593_other_pages_may_not_call(guarded: OwnServer, origin: str) -> None:
    with guarded.client() as client:
        answer = client.post("/reset_prefix_cache", headers={"Origin": origin})
        assert answer.status_code == 403
        assert not any(name.startswith("access-control") for name in answer.headers)
        preflight = client.options(
            "/reset_prefix_cache", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert preflight.status_code == 403
        own = client.post("/reset_prefix_cache", headers={"Origin": guarded.url})
        assert own.status_code == 200


def test_cors_is_for_the_origins_that_were_named(smollm2: str) -> None:
    flags = (
        "--executor",
        "null",
        "--api-key",
        "k",
        "--allowed-origin",
        "https://app.example",
        "--allowed-host",
        "quire.example",
    )
    with own_server(smollm2, *flags, ready=False) as server, server.client() as client:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        url = "/v1/models"
        preflight = client.options(url, headers={"Origin": "https://app.example", "Authorization": "", **wanted})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        answer = client.get(url, headers={"Origin": "https://app.example", "Host": "quire.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in answer.headers
        # Also what is refused can be read by the page that may ask.
        refused = client.get(url, headers={"Origin": "https://app.example", "Authorization": "Bearer no"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://app.example")
        foreign = client.options(url, headers={"Origin": "https://evil.example", **wanted})
        assert "access-control-allow-origin" not in foreign.headers
        assert client.get(url, headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "name",
    ["../config.json", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//etc/passwd", "/etc/passwd", "x%00"],
)
def test_cve_2024_45436_names_lead_out_of_no_folder(guarded: OwnServer, name: str) -> None:
    for prefix in ("/page/", "/v1/models/"):
        request = f"GET {prefix}{name} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {KEYS[0]}\r\nConnection: close\r\n\r\n"
        answer = exchange(guarded.port, request.encode())
        assert status_line(answer) in (400, 404)
        assert b"root:" not in answer


def test_names_of_this_server() -> None:
    names = Names("box.lan", ["quire"])
    own = [
        "localhost",
        "localhost:8000",
        "LOCALHOST",
        "box.lan:80",
        "quire",
        "a.localhost",
        "127.0.0.1:9",
        "[::1]:9",
        "[::1]",
    ]
    assert all(names.include(host) for host in [*own, "10.0.0.7:8000", "::1"])
    assert not any(
        names.include(host) for host in ["", ":80", "quire.evil", "localhost@evil", "evil:80:80", "1.2.3.4.evil"]
    )
    assert Names("x", ["*"]).include("whatever")
    assert is_own_origin("https://Box.lan", "box.lan")
    assert not is_own_origin("https://box.lan:1", "box.lan")
    assert not is_own_origin("box.lan", "")
