"""Cases 1 to 17 and 28 to 32 on a running server: requests that are left, odd, too long, too many or too slow."""

from __future__ import annotations

import json
import random
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.own_server import PATIENCE_S, OwnServer, counted, num_files, own_server, resident_bytes, wait_for
from tests.server.running_server import RunningServer
from tests.tiny_models import save_tiny_llama

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "go on", "max_tokens": 8000, "n": 8}
PROMPT_IDS = [index % 251 for index in range(1500)]
UNICODE = "na\u00efve 日本語 👩‍👩‍👧‍👦 🏳️‍🌈 ẞ"


def post(server: RunningServer | OwnServer, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if isinstance(server, RunningServer):
        answer = server.http.post(path, json=body)
    else:
        with server.client() as client:
            answer = client.post(path, json=body)
    return answer.status_code, answer.json()


def load(server: OwnServer) -> dict[str, float]:
    with server.client() as client:
        figures: dict[str, float] = client.get("/load").json()
        return figures


def is_idle(server: RunningServer) -> bool:
    load = server.load()
    return load["server_load"] == 0 == load["kv_cache_usage_perc"]


def context(server: RunningServer) -> int:
    length: int = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    return length


def streamed(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(events: list[dict[str, Any]]) -> list[str]:
    return [choice["text"] for event in events for choice in event["choices"]]


@contextmanager
def sent(server: RunningServer | OwnServer, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A request whose answer nobody has read yet."""
    content = json.dumps(body).encode()
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as connection:
        keys = server.headers if isinstance(server, OwnServer) else {}
        fields = {"Host": "localhost", "Content-Length": len(content), "Content-Type": "application/json", **keys}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\n{head}".encode() + content)
        yield connection


@pytest.mark.parametrize("stream", [True, False])
def test_case_01_and_case_02_a_client_leaves(null_server: RunningServer, stream: bool) -> None:
    """Many at once, so that some wait, some are in prefill and some decode."""
    wait_for(lambda: is_idle(null_server), "idleness")
    prompt = [random.Random(7).randrange(1000, 5000) for _ in range(4000)]
    num_tokens = 20 * 64 * (context(null_server) - len(prompt))
    for early in (True, False):
        before = counted(null_server, "generation_tokens")
        with ExitStack() as connections:
            for i in range(20):
                connections.enter_context(sent(null_server, {**LONG, "n": 64, "prompt": prompt[i:], "stream": stream}))
            if not early:
                wait_for(lambda: null_server.load()["num_requests_running"] > 0, "running")
        wait_for(lambda: is_idle(null_server), "free blocks")
        assert counted(null_server, "generation_tokens") - before < num_tokens / 2, "they were computed to their end"


def test_case_04_a_storm_leaves_no_block_held(null_server: RunningServer) -> None:
    rng = random.Random(0)

    def one(i: int) -> None:
        prompt = [1000 + j % 7 for j in range(rng.randrange(1, 600))]
        body = {"prompt": prompt, "max_tokens": rng.randrange(1, 200), "n": rng.choice((1, 1, 3)), "stream": True}
        with suppress(httpx.TimeoutException), null_server.http.stream("POST", COMPLETIONS, json=body) as answer:
            for _ in zip(answer.iter_raw(), range(rng.randrange(20)), strict=False):
                pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(150)))
    wait_for(lambda: is_idle(null_server), "idleness")
    assert post(null_server, COMPLETIONS, {"prompt": "a", "max_tokens": 2})[0] == 200


def test_case_05_and_case_06_more_than_the_kv_cache_holds(smollm2: str) -> None:
    """1,024 tokens of KV: fifty that crowd each other out all finish, so do samples of one request, and what could never fit is refused."""
    flags = ("--executor", "null", "--num-blocks", "65", "--max-model-len", "1000")
    with own_server(smollm2, *flags) as server, server.client() as client:
        with ThreadPoolExecutor(50) as pool:
            asked = [pool.submit(post, server, COMPLETIONS, {"prompt": "a", "max_tokens": 300 + i}) for i in range(50)]
            answers = [future.result(PATIENCE_S) for future in asked]
        for i, (status, body) in enumerate(answers):
            assert (status, body["usage"]["completion_tokens"]) == (200, 300 + i)
        preemptions = wait_for(lambda: counted(server, "num_preemptions"), "preemptions in /metrics")
        assert 0 < preemptions < 50 * 20
        several = client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 990, "n": 8})
        assert several.status_code == 200
        assert several.json()["usage"]["completion_tokens"] == 8 * 990
        assert client.post(COMPLETIONS, json={"prompt": [1000] * 1100, "max_tokens": 9}).status_code == 400
        wait_for(lambda: client.get("/load").json()["kv_cache_usage_perc"] == 0, "free blocks")


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], " ", "\n\t ", None, {}, [None], [1, "a"], "\x00"])
def test_case_07_empty_prompts(tiny_server: RunningServer, prompt: Any) -> None:
    status, body = post(tiny_server, COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
    assert status == (200 if prompt in (" ", "\n\t ", "\x00") else 400)
    assert status == 200 or body["error"]["message"]
    if isinstance(prompt, str):
        status, _ = post(tiny_server, CHAT, {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1})
        assert status == 200


@pytest.mark.parametrize(
    ("max_tokens", "status", "count"), [(0, 400, 0), (-1, 400, 0), (None, 200, 16), (2**63, 400, 0)]
)
def test_case_08_max_tokens(tiny_server: RunningServer, max_tokens: Any, status: int, count: int) -> None:
    body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True}
    got, answer = post(tiny_server, COMPLETIONS, body)
    assert got == status
    assert status == 400 or answer["usage"]["completion_tokens"] == count
    # What fits the type and not the context is cut to what fits.
    prompt = [1] * (context(tiny_server) - 20)
    _, answer = post(tiny_server, COMPLETIONS, {**body, "prompt": prompt, "max_tokens": 2**63 - 1})
    assert answer["usage"]["completion_tokens"] == 20
    wait_for(lambda: is_idle(tiny_server), "idleness")


@pytest.mark.parametrize(("longer", "status"), [(-1, 200), (0, 400), (1, 400)])
def test_case_09_prompts_of_the_context_and_one_more_and_less(
    tiny_server: RunningServer, longer: int, status: int
) -> None:
    length = context(tiny_server) + longer
    got, answer = post(tiny_server, COMPLETIONS, {"prompt": [1] * length, "max_tokens": 5})
    assert got == status
    if status == 400:
        assert str(length) in answer["error"]["message"]
        assert str(context(tiny_server)) in answer["error"]["message"]
    else:
        assert answer["usage"]["completion_tokens"] == 1


def test_case_10_stop_strings_over_several_tokens(tiny_server: RunningServer) -> None:
    body = {"prompt": "Say: ", "max_tokens": 120, "temperature": 0, "ignore_eos": True}
    whole = post(tiny_server, COMPLETIONS, body)[1]["choices"][0]["text"]
    tried = 0
    for start in range(2, len(whole) - 5, 7):
        stop = whole[start : start + 2 + start % 4]
        if "�" in stop:
            continue
        tried += 1
        expected = whole[: whole.index(stop)]
        assert post(tiny_server, COMPLETIONS, {**body, "stop": stop})[1]["choices"][0]["text"] == expected
        seen = ""
        for piece in text_of(streamed(tiny_server, COMPLETIONS, {**body, "stop": [stop, "never"]})):
            seen += piece
            assert expected.startswith(seen)
        assert seen == expected
    assert tried


def test_case_11_a_stop_string_inside_a_tool_call(tiny_llama: Path) -> None:
    """The call never ends, so it is none: what was held back comes out as text, streamed or whole."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    said = 'Well: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    flags = ("--num-threads", "1", "--num-blocks", "64", "--tool-call-parser", "hermes")
    with own_server(str(tiny_llama), *flags) as server, server.client() as client:
        for stop in ('"f"', ' "arguments"', "</tool"):
            body = {
                "messages": [{"role": "user", "content": "a"}],
                "tools": [tool],
                "stop": stop,
                "max_tokens": 100,
                "structured_outputs": {"choice": [said]},
            }
            whole = client.post(CHAT, json=body).raise_for_status().json()["choices"][0]
            events = client.post(CHAT, json={**body, "stream": True}).raise_for_status().text.split("\n\n")
            deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith("data: {")]
            text = "".join(delta.get("content") or "" for delta in deltas)
            calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
            if calls:
                arguments = "".join(call["function"].get("arguments") or "" for call in calls)
                (message_call,) = whole["message"]["tool_calls"]
                assert arguments == message_call["function"]["arguments"]
                assert text == (whole["message"]["content"] or "")
                assert json.loads(arguments) == {"a": 1}
            else:
                assert text == whole["message"]["content"] == said.partition(stop)[0]


def test_case_12_and_case_14_characters_of_many_bytes(tiny_server: RunningServer) -> None:
    """One token a byte. Sampled at random, most are no UTF-8: nothing raises, and deltas make the text."""
    ids = post(tiny_server, "/tokenize", {"prompt": UNICODE})[1]["tokens"]
    assert len(ids) == len(UNICODE.encode())
    assert post(tiny_server, "/detokenize", {"tokens": ids})[1]["prompt"] == UNICODE
    body = {"prompt": ids, "max_tokens": 1, "echo": True, "temperature": 0}
    assert post(tiny_server, COMPLETIONS, body)[1]["choices"][0]["text"].startswith(UNICODE)
    for seed in range(5):
        body = {"prompt": ids[: seed + 20], "max_tokens": 100, "seed": seed, "temperature": 2, "ignore_eos": True}
        text = post(tiny_server, COMPLETIONS, body)[1]["choices"][0]["text"]
        assert "".join(text_of(streamed(tiny_server, COMPLETIONS, body))) == text


def test_case_12_and_case_13_a_character_in_parts(tiny_server: RunningServer) -> None:
    """The model is made to say an emoji byte by byte: no U+FFFD shows before it is whole, or if it never is."""
    body = {"prompt": "a", "temperature": 0, "structured_outputs": {"choice": ["👩‍👩‍👧 日本"]}}
    events = streamed(tiny_server, COMPLETIONS, {**body, "max_tokens": 60})
    assert all("�" not in piece for piece in text_of(events))
    assert "".join(text_of(events)) == "👩‍👩‍👧 日本"
    for max_tokens in range(1, 6):
        choice = post(tiny_server, COMPLETIONS, {**body, "max_tokens": max_tokens})[1]["choices"][0]
        assert choice["finish_reason"] == "length"
        choice["text"].encode()
        assert choice["text"].rstrip("�") in ("", "👩", "👩‍")


def test_case_16_minus_infinity_is_valid_json(tiny_server: RunningServer) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    body = {"prompt": "a", "max_tokens": 3, "logprobs": 20, "allowed_token_ids": [5, 6], "prompt_logprobs": 20}
    answer = tiny_server.http.post(COMPLETIONS, json=body)
    assert answer.status_code == 200
    json.loads(answer.text, parse_constant=refuse)
    chat = {
        "messages": [{"role": "user", "content": "a"}],
        "logprobs": True,
        "top_logprobs": 20,
        "allowed_token_ids": [5],
    }
    json.loads(tiny_server.http.post(CHAT, json={**chat, "max_tokens": 2}).text, parse_constant=refuse)


def test_case_17_prompt_logprobs_of_a_long_prompt(tmp_path: Path) -> None:
    """Of 1,500 positions over 49,152 tokens: 295 MB, and several times that in the making, if they were held at once."""
    model = save_tiny_llama(tmp_path, vocab_size=49_152, max_position_embeddings=2048)
    with own_server(str(model), "--num-blocks", "130", "--num-threads", "1") as server:
        body = {"prompt": PROMPT_IDS[:200], "max_tokens": 1, "prompt_logprobs": 0}
        assert post(server, COMPLETIONS, body)[0] == 200
        before = peak_bytes(server.engine_pid)
        status, answer = post(server, COMPLETIONS, {**body, "prompt": PROMPT_IDS})
        assert status == 200
        assert len(answer["choices"][0]["prompt_logprobs"]) == 1500
        assert peak_bytes(server.engine_pid) < before + 280 * 2**20


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


UNREADY = [
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [1]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a " * 100_000}]}),
    ("/v1/responses", {"input": "a " * 100_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 100_000}]}),
    (COMPLETIONS, {"prompt": "a " * 100_000, "add_special_tokens": False}),
]
SPELLED = [
    {"Authorization": "bearer   b"},
    {"Authorization": "Basic eDp5", "X-Api-Key": "b"},
    {"Authorization": "Bearer c", "X-Api-Key": "b"},
]


def test_case_28_queue_full(smollm2: str) -> None:
    # One sequence after the other: those in the way need a minute, and are left long before it ends.
    flags = (
        "--executor",
        "null",
        "--num-blocks",
        "9000",
        "--max-num-seqs",
        "1",
        "--max-queued-requests",
        "6",
        "--max-client-requests",
        "4",
    )
    with own_server(smollm2, *flags, "--api-key", "a", "--api-key", "b", ready=True) as server:
        (api_pid,) = server.api_pids
        with ExitStack() as in_the_way, ThreadPoolExecutor(1) as pool:
            sockets = [in_the_way.enter_context(sent(server, {**LONG, "n": 16, "ignore_eos": True})) for _ in range(6)]
            # Two of them are answered, with a refusal: the other four were let in.
            wait_for(lambda: len(select.select(sockets, (), (), 0)[0]) == 2, "4 requests in the way")
            wait_for(lambda: load(server)["server_load"] > 0, "sequences")
            memory = resident_bytes(api_pid)
            with server.client() as client:
                # The same key has four, however it is spelled; another may have two more.
                refused = [client.post(COMPLETIONS, json={"prompt": "a"}) for _ in range(50)]
                refused += [client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers) for headers in SPELLED]
                # Before anything is rendered or tokenized: the long ones would be refused as such, the short ones answered.
                unready = [client.post(path, json=body) for path, body in UNREADY]
                other = {"Authorization": "Bearer a"}
                several = client.post(COMPLETIONS, json={"prompt": ["a"] * 3}, headers=other)
                never = client.post(COMPLETIONS, json={"prompt": ["a"] * 5}, headers=other)
                # All of that came back while those that are in the way still run.
                assert load(server)["server_load"] > 0
                body = {"prompt": "a", "max_tokens": 1}
                accepted = pool.submit(client.post, COMPLETIONS, json=body, headers=other)
                # Those in the way collect what they write meanwhile; the refused ones leave nothing.
                assert resident_bytes(api_pid) < memory + 128 * 2**20
                in_the_way.close()
                assert accepted.result(PATIENCE_S).status_code == 200
        assert [answer.status_code for answer in unready] == [429] * len(UNREADY)
        for answer in (*refused, several):
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "overloaded"
        assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt"), "to come again would not help"
        assert post(server, COMPLETIONS, {"prompt": "a", "max_tokens": 1})[0] == 200


def test_case_29_queue_deadline(smollm2: str) -> None:
    flags = ("--executor", "null", "--num-blocks", "3000", "--max-num-seqs", "1", "--queue-timeout", "1")
    with own_server(smollm2, *flags) as server, ThreadPoolExecutor(6) as pool:
        # The one in the way takes many times longer than the others wait.
        with sent(server, {**LONG, "prompt": [1], "n": 128, "ignore_eos": True}):
            wait_for(lambda: counted(server, "prompt_tokens") == 1, "the one in the way")
            bodies = [{**LONG, "n": 1, "prompt": [1000 + i]} for i in range(6)]
            answers = list(pool.map(lambda body: post(server, COMPLETIONS, body), bodies))
        assert [status for status, _ in answers] == [503] * 6
        assert all("not started within 1 s" in body["error"]["message"] for _, body in answers)
        wait_for(lambda: load(server)["server_load"] == 0, "idleness")
        assert counted(server, "prompt_tokens") == 1, "what was given up ran"


def test_case_30_two_live_requests_of_one_id(tiny_server: RunningServer) -> None:
    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 100, "temperature": 0, "request_id": "mine", "ignore_eos": True}
        return "".join(text_of(streamed(tiny_server, COMPLETIONS, body)))

    alone = [ask("first"), ask("second")]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, ["first", "second"])) == alone


def test_case_31_the_request_id_is_not_in_every_chunk(tiny_server: RunningServer) -> None:
    body = {"prompt": "a", "max_tokens": 20, "stream": True, "request_id": "m" * 128}
    with tiny_server.http.stream("POST", COMPLETIONS, json=body) as answer:
        assert answer.headers.get_list("x-request-id") == ["m" * 128]
        assert "mmm" not in answer.read().decode()


def read_out(connection: socket.socket) -> None:
    while connection.recv(2**20):
        pass


def test_case_32_a_reader_that_stops_is_aborted_and_others_go_on(smollm2: str) -> None:
    flags = ("--executor", "null", "--num-blocks", "9000", "--reader-timeout", "1")
    with own_server(smollm2, *flags) as server, server.client() as client:
        (api_pid,) = server.api_pids
        content = json.dumps({**LONG, "n": 16, "logprobs": 1, "return_token_ids": True, "stream": True}).encode()
        with socket.socket() as stuck:
            assert client.get("/health").status_code == 200
            num_open = num_files(api_pid)
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.settimeout(PATIENCE_S)
            stuck.connect(("127.0.0.1", server.port))
            stuck.sendall(
                f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
                + f"Content-Length: {len(content)}\r\n\r\n".encode()
                + content
            )
            assert stuck.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
            memory = resident_bytes(api_pid)
            assert (
                client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 50}).json()["usage"]["completion_tokens"]
                == 50
            )

            wait_for(lambda: num_files(api_pid) <= num_open, "the end of the connection")
            assert resident_bytes(api_pid) < memory + 100 * 2**20
            with pytest.raises(ConnectionResetError):
                read_out(stuck)
        assert server.process.poll() is None


def test_a_request_that_forbids_every_token_is_the_clients_fault(tiny_server: RunningServer) -> None:
    # Of so many different tokens the penalty sends at least one logit beyond all numbers, whatever is sampled.
    fields: dict[str, Any] = {"prompt": "".join(map(chr, range(32, 127))), "max_tokens": 5}
    for own in ({"allowed_token_ids": [256], "min_tokens": 2}, {"repetition_penalty": 5e-324}):
        status, answer = post(tiny_server, COMPLETIONS, {**fields, **own})
        assert status == 400
        assert "No token can be sampled" in answer["error"]["message"]
