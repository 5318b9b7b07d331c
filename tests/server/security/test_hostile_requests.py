"""Requests made to hurt: each is refused or served, the engine lives, and the neighbour's answer is what it always is."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.neighbour import PROBE, neighbour, probe
from tests.server.own_server import descendants, own_server, resident_bytes, wait_for
from tests.server.running_server import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def post(server: RunningServer, path: str, body: dict[str, Any] | str) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
    return answer.status_code, answer.json()


FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("field", FLOATS)
def test_cve_2026_54235_floats_that_are_none(tiny_server: RunningServer, field: str) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", '"1"', "true", "[]", "{}"):
        for path, rest in ((COMPLETIONS, '"prompt": "a"'), (CHAT, f'"messages": {json.dumps(USER)}')):
            status, body = post(tiny_server, path, f'{{{rest}, "max_tokens": 1, "{field}": {number}}}')
            assert status == 400, (number, body)
    # Minus zero is zero.
    status, _ = post(tiny_server, COMPLETIONS, f'{{"prompt": "a", "max_tokens": 1, "{field}": -0.0}}')
    assert status == (400 if field in ("top_p", "repetition_penalty") else 200)


def test_cve_2026_54235_logit_bias(tiny_server: RunningServer) -> None:
    for number in ("NaN", "1e400", '"1"', "true", "null"):
        status, _ = post(tiny_server, COMPLETIONS, f'{{"prompt": "a", "logit_bias": {{"1": {number}}}}}')
        assert status == 400, number


@pytest.mark.parametrize("token_id", [-1, 320, 2**31, 2**63, 2**64, True, 1.0, "1", None, []])
def test_cve_2026_93592_token_ids_that_are_none(tiny_server: RunningServer, token_id: Any) -> None:
    bodies = {
        COMPLETIONS: [
            {"prompt": [1, token_id]},
            {"prompt": [[1], [token_id]]},
            {"prompt": "a", "stop_token_ids": [token_id]},
            {"prompt": "a", "allowed_token_ids": [1, token_id]},
            {"prompt": "a", "logit_bias": {json.dumps(token_id): 1}},
        ],
        CHAT: [{"messages": USER, "stop_token_ids": [token_id]}, {"messages": USER, "allowed_token_ids": [token_id]}],
        "/detokenize": [{"tokens": [1, token_id]}],
    }
    for path, each in bodies.items():
        for body in each:
            assert post(tiny_server, path, body)[0] == 400 or body.get("logit_bias") == {'"1"': 1}, (path, body)
    assert probe(tiny_server)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", "n": 2**31},
        {"prompt": "a", "n": 0},
        {"prompt": "a", "n": -1},
        {"prompt": ["a"] * 100_000},
        {"prompt": ["a"] * 200, "n": 100},
        {"prompt": [[1]] * 100_000},
        {"prompt": "a", "stop": ["b"] * 100_000},
        {"prompt": "a", "stop": "b" * 100_000},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "bad_words": ["b"] * 100_000},
        {"prompt": "a", "bad_words": ["b" * 1024] * 1024},
        {"prompt": "a", "logprobs": 10**9},
        {"prompt": "a", "best_of": 10**9},
        {"prompt": "a" * 400_000},
        {"prompt": [1] * 400_000},
    ],
    ids=lambda body: "-".join(f"{key}" for key in body),
)
def test_cve_2026_34756_huge_numbers_are_refused_before_they_fan_out(
    tiny_server: RunningServer, body: dict[str, Any]
) -> None:
    assert post(tiny_server, COMPLETIONS, body)[0] == 400
    before = [resident_bytes(pid) for pid in descendants(tiny_server.pid)]
    for _ in range(3):
        assert post(tiny_server, COMPLETIONS, body)[0] == 400
    after = [resident_bytes(pid) for pid in descendants(tiny_server.pid)]
    assert sum(after) - sum(before) < 200 * 2**20
    wait_for(lambda: tiny_server.load()["server_load"] == 0, "idleness")


@pytest.mark.parametrize("min_tokens", [-1, 17, 512, 2**31, 2**63, 1.5, True])
def test_ghsa_4xqp_min_tokens(tiny_server: RunningServer, min_tokens: Any) -> None:
    assert post(tiny_server, COMPLETIONS, {"prompt": "a", "max_tokens": 16, "min_tokens": min_tokens})[0] == 400
    assert post(tiny_server, CHAT, {"messages": USER, "max_tokens": 16, "min_tokens": min_tokens})[0] == 400


HOSTILE = [
    {"allowed_token_ids": [0]},
    {"allowed_token_ids": list(range(320))},
    {"bad_words": [chr(code) for code in range(33, 120)]},
    {"bad_words": ["a" * 128]},
    {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1e30},
    {"presence_penalty": -2, "frequency_penalty": -2, "repetition_penalty": 1e-30},
    {"logit_bias": {str(i): -100 for i in range(320)}},
    {"temperature": 1e-4, "top_k": 1, "top_p": 1e-9, "min_p": 1},
    {"temperature": 2, "n": 8, "seed": 2**63 - 1, "logprobs": 20},
    {"stop": ["\x00", "�", "\ud83d\ude00"], "prompt": "\x00\x00"},
    {"prompt": [256] * 400},
    {"cache_salt": "\x00"},
    {"cache_salt": "probe", "prompt": PROBE["prompt"]},
]


def test_cve_2026_93840_no_request_moves_a_neighbours_row(tiny_server: RunningServer) -> None:
    with neighbour(tiny_server), ThreadPoolExecutor(6) as pool:
        # Twice: rows are used again.
        requests = [{"prompt": "x", "max_tokens": 30, "temperature": 1, **fields} for fields in HOSTILE * 2]
        statuses = list(pool.map(lambda body: post(tiny_server, COMPLETIONS, body)[0], requests))
    assert set(statuses) <= {200, 400}
    assert statuses.count(200) >= 16


@pytest.mark.parametrize("salt", ["", "a" * 513, "\ud800", 1, ["x"], {}, True])
def test_cve_2026_105756_strange_cache_salts(tiny_server: RunningServer, salt: Any) -> None:
    assert post(tiny_server, COMPLETIONS, {"prompt": "a", "cache_salt": salt})[0] == 400
    assert probe(tiny_server)


def cached_tokens(server: RunningServer, path: str, body: dict[str, Any]) -> int:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    status, answer = post(server, path, {limit: 1, **body})
    assert status == 200, answer
    usage: dict[str, Any] = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    count: int = usage["cache_read_input_tokens"] if details is None else details["cached_tokens"]
    return count


SECRET = "a secret that is long enough to fill some blocks " * 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": SECRET}),
        (CHAT, {"messages": [{"role": "user", "content": "chat: " + SECRET}]}),
        ("/v1/responses", {"input": "responses: " + SECRET}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "messages: " + SECRET}]}),
    ],
)
def test_cve_2025_46570_salts_keep_prompts_apart(tiny_server: RunningServer, path: str, body: dict[str, Any]) -> None:
    assert cached_tokens(tiny_server, path, {**body, "cache_salt": "one"}) == 0
    assert cached_tokens(tiny_server, path, {**body, "cache_salt": "one"}) > 0
    assert cached_tokens(tiny_server, path, {**body, "cache_salt": "two"}) == 0
    assert cached_tokens(tiny_server, path, body) == 0
    assert cached_tokens(tiny_server, path, body) > 0


def test_cve_2026_105755_twenty_at_once_under_one_id(tiny_server: RunningServer) -> None:
    def ask(i: int) -> tuple[str, str]:
        body = {"prompt": f"request {i}: ", "max_tokens": 40, "temperature": 0, "request_id": "same"}
        answer = tiny_server.http.post(COMPLETIONS, json=body, headers={"X-Request-Id": "same"})
        assert answer.headers.get_list("x-request-id") == ["same"]
        return answer.json()["id"], answer.json()["choices"][0]["text"]

    alone = [ask(i)[1] for i in range(20)]
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(ask, range(20)))
    assert [text for _, text in together] == alone
    assert len({answer_id for answer_id, _ in together}) == 20


@pytest.mark.parametrize("bad", ["a\r\nSet-Cookie: x", "a" * 129, "é", 1])
def test_case_31_request_ids_in_the_body(tiny_server: RunningServer, bad: Any) -> None:
    assert post(tiny_server, COMPLETIONS, {"prompt": "a", "request_id": bad})[0] == 400


BAD_SHAPES = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"pattern": "(", "type": "string"}},
        }
    },
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"$ref": "file:///etc/passwd"}},
        }
    },
    {"response_format": {"type": "no such type"}},
    {"structured_outputs": {"regex": "(" * 1000}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"grammar": "root ::= ("}},
    {"structured_outputs": {"grammar": "start: start start | start"}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"json": "{"}},
    {"structured_outputs": {"json": json.dumps({"a": 1})[:-1] + "[" * 5000}},
]


def test_cve_2025_48942_bad_shapes_are_400_and_the_neighbour_completes(tiny_server: RunningServer) -> None:
    with neighbour(tiny_server):
        for shape in BAD_SHAPES:
            for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})):
                status, answer = post(tiny_server, path, {**body, "max_tokens": 5, **shape})
                assert status == 400, (path, shape, answer)


@pytest.mark.parametrize(
    "regex", ["((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}", "(a+)+b", "(.*a){25}", "(?:a|a)*" * 30]
)
def test_cve_2026_73556_exponential_regexes_are_refused_or_harmless(tiny_server: RunningServer, regex: str) -> None:
    with neighbour(tiny_server):
        body = {"prompt": "a", "max_tokens": 5, "structured_outputs": {"regex": regex}}
        assert post(tiny_server, COMPLETIONS, body)[0] in (200, 400)


def test_cve_2026_55574_deep_schemas_are_400(tiny_server: RunningServer) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    text = '{"type":"object","properties":{"a":' * 3000 + "true" + "}}" * 3000
    body = f'{{"prompt": "a", "max_tokens": 4, "structured_outputs": {{"json": {text}}}}}'
    with neighbour(tiny_server):
        assert post(tiny_server, COMPLETIONS, body)[0] == 400


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "no such type"}],
        [{"type": "function"}],
        [{"type": "function", "function": {"name": "a", "parameters": {"type": "no such type"}}}],
        [{"type": "function", "function": {"name": "a; import os", "parameters": {}}}],
        [{"type": "function", "function": {"name": ["a"], "parameters": {}}}],
        [1],
        "tools",
    ],
)
def test_cve_2025_48943_bad_tools_are_400(tiny_server: RunningServer, tools: Any) -> None:
    body = {"messages": USER, "tools": tools, "tool_choice": "required", "max_tokens": 5}
    assert post(tiny_server, CHAT, body)[0] == 400
    assert probe(tiny_server)


def test_cve_2025_61620_templates_of_requests_are_off(tiny_server: RunningServer) -> None:
    loop = "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}"
    for path in (CHAT, "/tokenize"):
        status, answer = post(tiny_server, path, {"messages": USER, "chat_template": loop})
        assert status == 400
        assert answer["error"]["param"] == "chat_template"


@pytest.mark.parametrize(
    "reserved", ["messages", "tools", "tokenize", "chat_template", "add_generation_prompt", "bos_token"]
)
def test_cve_2025_62426_reserved_template_arguments_are_400(tiny_server: RunningServer, reserved: str) -> None:
    for path in (CHAT, "/tokenize"):
        body = {"messages": USER, "chat_template_kwargs": {reserved: "x"}}
        assert post(tiny_server, path, body)[0] == 400


ENDLESS = "{% for i in range(100000) %}{% for j in range(100000) %}{{ i * j }}{% endfor %}{% endfor %}"
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch MARKER').read() }}",
    "{{ messages.append(1) }}",
    "{% set x = messages.__init__ %}{{ x.__globals__ }}",
    "{{ lipsum.__globals__['os'].system('touch MARKER') }}",
)


def test_cve_2024_34359_a_template_of_the_model_file_cannot_get_out(tiny_llama: Path, tmp_path: Path) -> None:
    """Also where requests may bring their own, on every route that renders one; an endless one holds nobody up."""
    model, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(tiny_llama, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    evil = ESCAPES[1].replace("MARKER", str(marker))
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": evil}))
    flags = ("--num-blocks", "64", "--num-threads", "1", "--trust-request-chat-template")
    with own_server(str(model), *flags) as server, server.client() as client:
        for path in (CHAT, "/tokenize"):
            for template in (None, *ESCAPES):
                body = {"messages": USER, "chat_template": template and template.replace("MARKER", str(marker))}
                answer = client.post(path, json=body)
                assert answer.status_code == 400, (path, template, answer.text)
                assert "0x" not in answer.text
        with ThreadPoolExecutor(1) as pool:
            endless = pool.submit(client.post, CHAT, json={"messages": USER, "chat_template": ENDLESS})
            while True:
                assert server.status_of("/health") == 200
                if endless.done():
                    break
            assert endless.result().status_code == 400
    assert not marker.exists()


KV_TRANSFER = {"remote_host": "127.0.0.1", "remote_port": 1, "do_remote_prefill": True}


@pytest.mark.parametrize("field", ["kv_transfer_params", "remote_host", "do_remote_prefill", "bootstrap_host"])
def test_cve_2026_94622_parameters_of_kv_transfer_are_refused(tiny_server: RunningServer, field: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        COMPLETIONS: PROBE,
        CHAT: {"messages": USER},
        "/v1/responses": {"input": "hi"},
        "/v1/messages": {"messages": USER, "max_tokens": 5},
        "/tokenize": {"prompt": "hi"},
        "/v1/embeddings": {"input": "hi"},
    }
    for path, body in bodies.items():
        status, answer = post(tiny_server, path, {**body, field: KV_TRANSFER})
        assert status == 400, path
        assert answer["error"]["message"].startswith(f"{field}: clients may not say"), answer
        assert path == "/v1/messages" or answer["error"]["param"] == field
    # Clients that write out every field they know send null; and a tool may have an argument of any name.
    assert post(tiny_server, COMPLETIONS, {"prompt": "a", "max_tokens": 1, field: None})[0] == 200
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {field: {"type": "string"}}}}}
    assert post(tiny_server, CHAT, {"messages": USER, "max_tokens": 1, "tools": [tool]})[0] == 200


@pytest.mark.parametrize("name", ["../tiny", "../../etc/passwd", "/etc/passwd", "tiny/../tiny", "tiny\x00", "..\\tiny"])
def test_cve_2026_22807_no_request_names_a_model_to_load(tiny_server: RunningServer, name: str) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER}), ("/tokenize", {"prompt": "a"})):
        status, answer = post(tiny_server, path, {**body, "model": name})
        assert status in (400, 404)
        assert "root:" not in json.dumps(answer)
