"""CVE-2025-48956 and its like: what a client sends is bounded, however it sends it."""

from __future__ import annotations

import socket

import pytest
from tests.server.own_server import OwnServer, exchange, num_files, resident_bytes, status_line, wait_for
from tests.server.running_server import RunningServer
from tests.server.security.conftest import KEYS

HEAD = f"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nx-api-key: {KEYS[0]}\r\n".encode()
MAX_BODY_SIZE = 2**20


@pytest.mark.parametrize(
    "header",
    [
        b"X-Long: " + b"a" * 2**16,
        b"a" * 2**16 + b": x",
        b"\r\n".join(b"X-%d: y" % i for i in range(5000)),
        b"Cookie: " + b"a" * 2**20,
        b"X-Request-Id: " + b"a" * 2**20,
    ],
    ids=["value", "name", "many", "1 MiB", "request id"],
)
def test_cve_2025_48956_long_headers_are_431(guarded: OwnServer, header: bytes) -> None:
    answer = exchange(guarded.port, HEAD + header + b"\r\n\r\n")
    assert status_line(answer) == 431
    assert b"32768 bytes" in answer
    assert len(answer) < 1000


def test_cve_2025_48956_long_headers_in_pieces_are_431(guarded: OwnServer) -> None:
    # It is refused before it ends; the rest is thrown away.
    answer = exchange(guarded.port, HEAD + b"X: ", chunks=[b"a" * 1000] * 60)
    assert status_line(answer) == 431


@pytest.mark.parametrize("target", [b"/" + b"a" * 2**16, b"/health?" + b"a=b&" * 2**14])
def test_cve_2025_48956_a_long_target_is_431(guarded: OwnServer, target: bytes) -> None:
    answer = exchange(guarded.port, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_line(answer) == 431


def test_headers_of_ordinary_size_pass(guarded: OwnServer) -> None:
    with guarded.client() as client:
        assert client.get("/health/live", headers={"Cookie": "a" * 16_000}).status_code == 200


def test_cve_2025_48956_bodies_are_413(guarded: OwnServer) -> None:
    with guarded.client() as client:
        fitting, too_large = b"x" * MAX_BODY_SIZE, b"x" * (MAX_BODY_SIZE + 1)
        for body, status in ((fitting, 400), (too_large, 413)):
            declared = client.post("/v1/embeddings", content=body)
            chunked = client.post("/v1/embeddings", content=iter([body[: 2**19], body[2**19 :]]))
            assert (declared.status_code, chunked.status_code) == (status, status)
            assert all("x-request-id" in answer.headers for answer in (declared, chunked))
        assert "1048576 bytes" in declared.json()["error"]["message"]


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"99999999999999999999999", b"0x10", b"5, 6", b""])
def test_cve_2025_48956_lengths_that_are_none(guarded: OwnServer, length: bytes) -> None:
    answer = exchange(guarded.port, HEAD + b"Connection: close\r\nContent-Length: " + length + b"\r\n\r\n")
    assert status_line(answer) in (400, 413)


def test_cve_2025_48956_two_lengths_are_no_way_to_smuggle(guarded: OwnServer) -> None:
    for headers in (b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"Content-Length: 3\r\nContent-Length: 4"):
        answer = exchange(guarded.port, HEAD + headers + b"\r\n\r\n0\r\n\r\nGET /health/live HTTP/1.1\r\n\r\n")
        assert status_line(answer) == 400
        assert answer.count(b"connection: close") == 1


def test_cve_2025_48956_100k_tiny_chunks(guarded: OwnServer) -> None:
    (api_pid,) = guarded.api_pids
    memory = resident_bytes(api_pid)
    head = HEAD.replace(b"/reset_prefix_cache", b"/v1/embeddings")
    request = head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(guarded.port, request, chunks=[b"1\r\na\r\n" * 1000] * 100 + [b"0\r\n\r\n"])
    assert status_line(answer) == 400
    assert resident_bytes(api_pid) < memory + 50 * 2**20


def test_cve_2025_48956_clients_that_send_slowly_hold_nobody_up(guarded: OwnServer) -> None:
    (api_pid,) = guarded.api_pids
    before = num_files(api_pid)
    beginnings = (b"", b"G", b"GET / HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 100\r\n\r\n{")
    slow = [socket.create_connection(("127.0.0.1", guarded.port)) for _ in range(400)]
    try:
        for i, connection in enumerate(slow):
            connection.sendall(beginnings[i % len(beginnings)])
        wait_for(lambda: num_files(api_pid) >= len(slow), "400 connections")
        with guarded.client() as client:
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").status_code == 200
    finally:
        for connection in slow:
            connection.close()
    wait_for(lambda: num_files(api_pid) <= before + 2, "closing")
    # Those that are there for ever: see test_http_protocol.


@pytest.mark.parametrize("length", [129, 1000, 20_000])
def test_case_31_long_request_ids_are_refused(guarded: OwnServer, length: int) -> None:
    with guarded.client() as client:
        answer = client.get("/v1/models", headers={"X-Request-Id": "a" * length})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Id")
        assert "x-request-id" not in answer.headers


def test_request_ids_are_echoed_once(guarded: OwnServer) -> None:
    with guarded.client() as client:
        for request_id in ("mine", "a" * 128, "x y"):
            answer = client.get("/v1/models", headers={"X-Request-Id": request_id})
            assert answer.headers.get_list("x-request-id") == [request_id]
            assert request_id not in answer.text
    for bad in (b"caf\xc3\xa9", b"\x80", b"a\tb"):
        answer = exchange(guarded.port, HEAD + b"Connection: close\r\nX-Request-Id: " + bad + b"\r\n\r\n")
        assert status_line(answer) == 400


def test_case_09_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(tiny_server: RunningServer) -> None:
    text = "a" * 400_000
    talk = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    completion = {"prompt": text, "max_tokens": 2}
    bodies = {"/v1/messages": talk, "/v1/responses": {"input": text}, "/v1/chat/completions": talk}
    for path, body in {**bodies, "/v1/completions": completion}.items():
        answer = tiny_server.http.post(path, json=body)
        assert answer.status_code == 400
        assert "characters, but at most" in answer.json()["error"]["message"], (path, answer.text)
    # What will be cut, or only counted, is read.
    for path, body in {"/v1/chat/completions": talk, "/v1/completions": completion}.items():
        assert tiny_server.http.post(path, json={**body, "truncate_prompt_tokens": 10}).status_code == 200
    assert tiny_server.http.post("/tokenize", json={"prompt": text}).json()["count"] == len(text)
