"""CVE-2025-48887 and CVE-2025-46560: text made to be read again and again costs twice the work at twice the length.

A real server says it; its work is the processor time of its API process, which does not count what others do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.hostile_vocabulary import save_speaker, seed_for
from tests.server.own_server import OwnServer, own_server

CHAT = "/v1/chat/completions"
NUM_TOKENS = 4000
"""Of at least 260 characters each: 1 MB."""
ATTEMPTS = 3
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
HOSTILE = {
    "hermes-openings": ("hermes", "", ("<tool_call>", "<tool_call> ")),
    "hermes-half-calls": ("hermes", "", ('<tool_call>{"name":', '<tool_call>{"name": ')),
    "hermes-half-marks": ("hermes", "", ("<tool_c", "<tool_ca")),
    "hermes-one-string": ("hermes", '<tool_call>{"name":"now","arguments":{"a":"', ("\\n", "\\\\")),
    "hermes-late-name": ("hermes", '<tool_call>{"arguments":{"a":[', ("1,", "{},")),
    "pythonic-calls": ("pythonic", "[", ("now(a=1), ", "now(a=1),")),
    "pythonic-openings": ("pythonic", "", ("[now(", "[now( ")),
    "llama3_json-calls": ("llama3_json", "", ('{"name":"now","parameters":{}};', '{"name":"now","parameters":{}}; ')),
    "mistral-openings": ("mistral", "", ("[TOOL_CALLS][", "[TOOL_CALLS]")),
    "deepseek-openings": ("deepseek", "", ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁begin｜>f")),
    "think-half-ends": ("think", "<think>", ("</thin ", "</think")),
    "think-space": ("think", "<think>a", (" ", "\n")),
}


@contextmanager
def speaker(tiny_llama: Path, directory: Path, name: str) -> Iterator[OwnServer]:
    parser, head, units = HOSTILE[name]
    model = save_speaker(tiny_llama, directory / "model", head, units)
    parsers = ("--reasoning-parser", parser) if parser == "think" else ("--tool-call-parser", parser)
    with own_server(model, "--executor", "null", "--num-blocks", "1024", *parsers) as server:
        yield server


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work(server: OwnServer, num_answers: int, num_tokens: int, **fields: Any) -> float:
    """Seconds that the API process spends on so many answers of so many tokens."""
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
    (api_pid,) = server.api_pids
    with server.client() as client:
        num_prompt_tokens = client.post("/tokenize", json=body).json()["count"]
        body |= {"seed": seed_for(num_prompt_tokens), "max_tokens": num_tokens, "ignore_eos": True, **fields}
        before = processor_seconds(api_pid)
        for _ in range(num_answers):
            answer = client.post(CHAT, json=body)
            if answer.status_code != 200 or '"length"' not in answer.text:
                raise AssertionError(answer.text[:1000])
        spent = processor_seconds(api_pid) - before
        client.get("/health").raise_for_status()
    return spent


def check_linear(server: OwnServer, num_tokens: int, **fields: Any) -> None:
    """One text against eight of an eighth each. At ×2.5 a doubling the one could take twice as long; at ×4, 8 times. Processor time is
    counted in ticks of 10 ms and is longer on a busy machine: what is linear is so in one of three attempts."""
    work(server, 1, num_tokens // 8, **fields)
    ratios = []
    for _ in range(ATTEMPTS):
        eighths, whole = work(server, 8, num_tokens // 8, **fields), work(server, 1, num_tokens, **fields)
        if 0 < whole <= 2.5**3 / 8 * eighths:
            return
        ratios.append((whole, eighths))
    raise AssertionError(f"{fields}: seconds of one text, and of eight: {ratios}")


@pytest.mark.parametrize("name", ["hermes-half-calls", "hermes-one-string", "pythonic-openings", "think-half-ends"])
def test_cve_2025_48887_a_megabyte_of_hostile_text_is_parsed_in_linear_time(
    tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    with speaker(tiny_llama, tmp_path, name) as server:
        check_linear(server, NUM_TOKENS, stream=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTILE)
def test_cve_2025_48887_all_hostile_texts_streamed_and_whole(tiny_llama: Path, tmp_path: Path, name: str) -> None:
    with speaker(tiny_llama, tmp_path, name) as server:
        for stream in (True, False):
            check_linear(server, NUM_TOKENS, stream=stream)
