"""A server's answers as pieces of text, and its refusals as errors."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from tests.fake_server import FakeServer

from quire.client import remote_chat
from quire.client.address import RemoteError, parse_address
from quire.client.discovery import ServedModel, find_model
from quire.client.remote_chat import RemoteModel
from quire.errors import InvalidRequestError

HELLO = [{"role": "user", "content": "hello"}]


def remote(server: FakeServer) -> RemoteModel:
    return RemoteModel(parse_address(server.url), "fake")


async def collect(model: RemoteModel, **fields: Any) -> tuple[str, int]:
    pieces = [piece async for piece in model.chat(HELLO, {"max_tokens": 3, **fields})]
    return "".join(text for text, _ in pieces), sum(count for _, count in pieces)


def test_a_chat_streams_text_and_the_servers_count(server: FakeServer) -> None:
    assert asyncio.run(collect(remote(server), temperature=0.5)) == (" w0 w1 w2", 3)
    body = server.bodies[-1]
    assert (body["model"], body["messages"], body["temperature"]) == ("fake", HELLO, 0.5)


def test_a_completion(server: FakeServer) -> None:
    async def complete() -> str:
        return "".join([text async for text, _ in remote(server).complete("once", {"max_tokens": 2})])

    assert asyncio.run(complete()) == " w0 w1"
    assert server.bodies[-1]["prompt"] == "once"


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        ("refuse", InvalidRequestError, "^this is refused$"),
        ("busy", RemoteError, "answered 429: busy"),
        ("error_event", RemoteError, "broke off: the engine died$"),
        ("garbage", RemoteError, "no completion chunk"),
        ("cut", RemoteError, "does not answer"),
    ],
)
def test_errors(server: FakeServer, behaviour: str, error: type[Exception], message: str) -> None:
    server.plan = [behaviour]
    with pytest.raises(error, match=message):
        asyncio.run(collect(remote(server)))


@pytest.mark.parametrize("fields", [{"temperature": float("nan")}, {"stop": ["\ud800"]}])
def test_what_json_does_not_have_is_refused(server: FakeServer, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        asyncio.run(collect(remote(server), **fields))


def test_an_error_without_words_is_named(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As anyio's timeouts are."""
    server.gap_s = 1000
    monkeypatch.setattr(remote_chat, "READ_TIMEOUT_S", 0.1)
    with pytest.raises(RemoteError, match="does not answer: ReadTimeout"):
        asyncio.run(collect(remote(server)))


def test_leaving_early_closes_the_connection(server: FakeServer) -> None:
    server.gap_s = 0.01

    async def leave() -> None:
        async with aclosing(remote(server).chat(HELLO, {"max_tokens": 1000})) as pieces:
            async for _ in pieces:
                break
        while not server.num_closed:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 20))


def test_the_model_is_found(server: FakeServer) -> None:
    address = parse_address(server.url + "/v1/")
    assert find_model(address) == find_model(address, "fake") == ServedModel("fake", 512)
    with pytest.raises(RemoteError, match="serves fake, not other"):
        find_model(address, "other")


def test_an_answer_nested_deeper_than_python_goes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nested, request = b"[" * 100_000 + b"]" * 100_000, httpx.Request("GET", "http://h")
    monkeypatch.setattr(httpx.Client, "get", lambda *_, **__: httpx.Response(200, content=nested, request=request))
    with pytest.raises(RemoteError, match="not answered as OpenAI does"):
        find_model(parse_address("http://h"))
    assert "The server answered 500" in str(remote_chat._refusal(httpx.Response(500, content=nested)))


@pytest.mark.parametrize("told", ["512", [512], 0.5, None])
def test_a_context_that_is_no_number_is_none(server: FakeServer, told: Any) -> None:
    server.max_model_len = told
    assert find_model(parse_address(server.url)) == ServedModel("fake", None)


def test_a_key_is_sent_and_its_lack_is_told() -> None:
    with FakeServer("fake", api_key="secret") as server:
        assert find_model(parse_address(server.url, "secret")).name == "fake"
        with pytest.raises(RemoteError, match="add --api-key"):
            find_model(parse_address(server.url))


def test_nobody_there() -> None:
    with FakeServer("gone") as gone:
        url = gone.url
    with pytest.raises(RemoteError, match=r"No server answers at .*`quire serve`"):
        find_model(parse_address(url))


def test_silence_at_the_first_question_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> None:
        raise httpx.ReadTimeout("")

    monkeypatch.setattr(httpx.Client, "get", silent)
    with pytest.raises(RemoteError, match="http://h: ReadTimeout; start one"):
        find_model(parse_address("http://h"))


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://x", "http://", "http://h:99999", "http://h/?a=1", "http://h:x", "http://me:pw@h:1"),
        *("", "http:h", "http:///v1", "http://h:0", "http://h?", "http://h#", "http://[::1", "http://[h]"),
        *("http://.:9", "http://a..b", f"http://{'a' * 64}", "http://xn--"),
        *("http://h\n", "http://h\x00", "http://h/\t", "http://a b", " http://h"),
    ],
)
def test_wrong_urls(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="A server is named like"):
        parse_address(url)


@pytest.mark.parametrize("key", ["a\r\nHost: x", "schlüssel"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="printable ASCII"):
        parse_address("http://h", key)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_roots(url: str) -> None:
    address = parse_address(url)
    assert (address.root, address.host, address.port) == ("http://h:1", "h", 1)


def test_ipv6_and_default_ports() -> None:
    address = parse_address("http://[::1]:80/proxy/v1")
    assert (address.root, address.host) == ("http://[::1]:80/proxy", "::1")
    assert (parse_address("https://h").port, parse_address("http://h").port) == (443, 80)


def test_a_scheme_may_be_written_in_capitals() -> None:
    address = parse_address("HTTPS://Host/V1/v1")
    assert (address.root, address.is_tls, address.port) == ("https://Host/V1", True, 443)


def test_hosts_with_long_labels_dots_and_other_letters() -> None:
    for host in ("a" * 63, "host.local.", "müller.example", "my_host", "[fe80::1%eth0]"):
        assert parse_address(f"http://{host}:1").root == f"http://{host}:1"
