"""Commands that start a server of their own: it is the real one, and it ends with them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import ENVIRONMENT, QUIRE, RunQuire

from quire.client.server_process import ServerProcess


def children(pid: int) -> set[int]:
    """A process and all that descend from it."""
    found = {pid}
    tasks = Path(f"/proc/{pid}/task")
    for task in tasks.iterdir() if tasks.exists() else ():
        for child in (task / "children").read_text().split():
            found |= children(int(child))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def requests(count: int, max_tokens: int) -> str:
    bodies = [
        {
            "custom_id": f"r{index}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"number {index}", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True},
        }
        for index in range(count)
    ]
    return "".join(json.dumps(body) + "\n" for body in bodies)


def test_a_batch_brings_its_own_server(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    refused = {"prompt": "x", "max_tokens": -1}
    source.write_text(
        requests(3, 4)
        + json.dumps({"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": refused})
        + "\n"
    )
    done = quire("run-batch", "-i", source, "-o", target, "--model", tiny_llama, "--max-model-len", 128)
    assert done.returncode == 0, done.stderr
    assert "3 answered, 1 failed, 0 done before" in done.stderr
    records = {record["custom_id"]: record for record in map(json.loads, target.read_text().splitlines())}
    assert records.keys() == {"r0", "r1", "r2", "bad"}
    assert records["r0"]["response"]["body"]["usage"]["completion_tokens"] == 4
    assert records["bad"]["response"]["status_code"] == 400
    again = quire("run-batch", "-i", source, "-o", target, "--model", tmp_path / "no-model-is-needed")
    assert again.returncode == 0, again.stderr
    assert "0 answered, 0 failed, 4 done before" in again.stderr


def test_a_batch_of_which_nothing_is_answered_has_failed(quire: RunQuire, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a"}\n')
    nobody = ["--url", "http://127.0.0.1:9"]
    for summary in ("0 answered, 1 failed, 0 done before", "0 answered, 0 failed, 1 done before"):
        done = quire("run-batch", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", *nobody)
        assert done.returncode == 1
        assert summary in done.stderr


def test_a_killed_batch_leaves_no_server_behind(tiny_llama: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(requests(10_000, 4))
    words = [
        "run-batch",
        "-q",
        "-i",
        str(source),
        "-o",
        str(target),
        "--model",
        str(tiny_llama),
        "--max-concurrency",
        "2",
    ]
    with subprocess.Popen([QUIRE, *words], env=ENVIRONMENT) as process:
        try:
            wait_until(lambda: target.exists() and target.read_bytes().count(b"\n") >= 3)
            family = children(process.pid)
            commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family]
        finally:
            process.kill()
    assert len(family) >= 4, "the batch, and the server's supervisor, engine and API process"
    assert any(b"--max-client-requests\x001000000000" in command for command in commands), (
        "its limit is the batch's own"
    )
    wait_until(lambda: not any(map(alive, family)))


def test_a_server_that_does_not_start_is_quoted(quire: RunQuire, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(requests(1, 1))
    done = quire("run-batch", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--model", tmp_path / "none")
    assert done.returncode == 1
    assert "The server ended with code 1" in done.stderr
    assert str(tmp_path / "none") in done.stderr


def test_startup(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "startup.json"
    done = quire("bench", "startup", "--repeats", 2, "--output", output, "--", tiny_llama, "--max-model-len", 128)
    assert done.returncode == 0, done.stderr
    assert "/health/ready answers" in done.stdout
    result = json.loads(output.read_text())
    for run in result["repeats"]:
        assert 0 < run["listening"] <= run["ready"] < run["first_token"]
    assert result["listening_s"] == sum(run["listening"] for run in result["repeats"]) / 2
    assert result["serve_flags"] == [str(tiny_llama), "--max-model-len", "128"]


def test_bench_serve_agrees_with_the_real_servers_metrics(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    """Tokens and requests exactly; the means differ by what HTTP costs, which here is not small against the rest."""
    with ServerProcess([str(tiny_llama), "--executor", "null"]) as server:
        server.wait_until("/health/ready", 60)
        key = server.address.api_key
        words = ["--url", server.address.root, f"--api-key={key}", "--num-prompts", 20, "--input-len", 16]
        for endpoint in ("completions", "chat"):
            output = tmp_path / f"{endpoint}.json"
            flags = [*words, "--endpoint", endpoint, "--output-len", 8, "--check-metrics", "--output", output]
            done = quire("bench", "serve", "--max-concurrency", 4, *flags)
            assert done.returncode in (0, 1), done.stderr
            result = json.loads(output.read_text())
            assert (result["completed"], result["total_output_tokens"]) == (20, 160)
            for name in ("prompt tokens", "output tokens", "requests"):
                assert result["metrics_check"][name]["difference"] == 0, name
            for name in ("mean TTFT (ms)", "mean E2EL (ms)"):
                assert result["metrics_check"][name]["server"] > 0
