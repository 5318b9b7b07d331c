"""Each command, end to end on a tiny model: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import RunQuire

GREEDY = ("--temperature", 0, "--max-tokens", 8)


def test_generate_prints_the_continued_prompt(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("generate", "Hello", "--model", tiny_llama, *GREEDY)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Hello")
    assert "KV cache: " in result.stderr
    assert "num_threads" in result.stderr


def test_quiet_generate_says_nothing_else(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("generate", "Hello", "World", "--model", tiny_llama, *GREEDY, "--quiet")
    assert result.stderr == ""


def test_generate_reads_stdin_and_prints_json(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("generate", "--json", "--model", tiny_llama, *GREEDY, stdin="Héllo\n")
    output = json.loads(result.stdout)
    assert output["prompt"] == "Héllo"
    assert output["num_prompt_tokens"] == 6, "one token a byte"
    assert len(output["token_ids"]) <= 8
    assert output["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("words", [[], ["a", ""]])
def test_an_empty_prompt_is_refused_before_anything_loads(quire: RunQuire, words: list[str]) -> None:
    result = quire("generate", *words, "--model", "no-such-model", stdin="\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: The prompt is empty; give at least one character.\n"


def test_a_prompt_that_cannot_be_continued_is_said_so(quire: RunQuire, overflowing_llama: Path) -> None:
    result = quire("generate", "Hello", "World", "--model", overflowing_llama, *GREEDY, "--quiet")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("are not finite") == 2
    result = quire("generate", "Hello", "--json", "--model", overflowing_llama, *GREEDY, "--quiet")
    output = json.loads(result.stdout)
    assert (result.returncode, output["finish_reason"]) == (1, "error")
    assert "are not finite" in output["error"]


def test_the_seed_decides_the_text(quire: RunQuire, tiny_llama: Path) -> None:
    def texts(seed: int) -> list[str]:
        result = quire("generate", "a", "a", "--json", "--model", tiny_llama, "--max-tokens", 16, "--seed", seed)
        assert result.returncode == 0, result.stderr
        return [json.loads(line)["text"] for line in result.stdout.splitlines()]

    first, again = texts(3)
    assert first == again != texts(4)[0]


def test_generate_chat_uses_the_template(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("generate", "Hi", "--chat", "--json", "--model", tiny_llama, *GREEDY)
    assert json.loads(result.stdout)["num_prompt_tokens"] > len("Hi")


def test_a_bad_sampling_value_names_it_before_anything_loads(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("generate", "x", "--model", tiny_llama, "--top-p", 7)
    assert result.returncode == 1
    assert "top_p" in result.stderr
    assert "KV cache" not in result.stderr


def test_plan_for_people(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("plan", tiny_llama, "--memory", "4GiB", "--concurrency", 3)
    assert result.returncode == 0, result.stderr
    for word in ("weights", "KV cache", "activations", "runtime", "total", "fits in 4.00 GiB", "longest context"):
        assert word in result.stdout


def plan(quire: RunQuire, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = quire("plan", *arguments, "--json")
    assert result.returncode == exit_code, result.stderr
    return dict(json.loads(result.stdout))


def test_plan_as_json(quire: RunQuire, tiny_llama: Path) -> None:
    found = plan(quire, tiny_llama, "--memory", "4GiB", "--dtype", "float32", "--max-model-len", 100)
    assert found["fits"]
    assert found["remedy"] is None
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # K and V, layers, KV heads, head_dim, bytes
    assert found["largest_context"] == 512


def test_plan_names_the_one_change(quire: RunQuire, tiny_llama: Path) -> None:
    whole = plan(quire, tiny_llama, "--memory", "1TiB", "--concurrency", 100_000)
    found = plan(quire, tiny_llama, "--memory", sum(whole["need"].values()) // 2, "--concurrency", 100_000, exit_code=1)
    assert not found["fits"]
    assert "lower the concurrency" in found["remedy"]


def test_plan_reads_no_weights(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    assert plan(quire, tmp_path, "--memory", "4GiB")["fits"]


def test_plan_tells_what_it_fetches_and_what_its_exit_code_means(quire: RunQuire) -> None:
    told = " ".join(quire("plan", "--help").stdout.split())
    assert "A built-in model, whose config is in the file of its weights, is fetched first" in told
    assert "exit code is 1 if the model does not fit" in told


def test_plan_refuses_nonsense(quire: RunQuire, tiny_llama: Path) -> None:
    assert "8GiB" in quire("plan", tiny_llama, "--memory", "lots").stderr
    assert "concurrency" in quire("plan", tiny_llama, "--concurrency", 0).stderr
    both = quire("plan", tiny_llama, "--memory", "8GiB", "--memory-utilization", 0.5)
    assert (both.returncode, both.stdout) == (1, "")
    assert "leave out --memory-utilization" in both.stderr


def test_bench_throughput_writes_result_and_picture(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    output, picture = tmp_path / "r.json", tmp_path / "r.png"
    workload = ("--num-prompts", 3, "--input-len", "4:9", "--output-len", 5, "--repeats", 2)
    result = quire("bench", "throughput", "--model", tiny_llama, *workload, "--output", output, "--plot", picture)
    assert result.returncode == 0, result.stderr
    assert "output tok/s" in result.stdout
    assert "warm-up" in result.stderr
    found = json.loads(output.read_text())
    assert (found["completed"], found["total_output_tokens"]) == (3, 15)
    assert len(found["repeats"]) == 2
    assert found["environment"]["torch"]
    assert found["config"]["num_threads"] >= 1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_latency_times_the_stream(quire: RunQuire, tiny_llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    workload = ("--num-prompts", 2, "--input-len", 6, "--output-len", 7, "--repeats", 1)
    result = quire("bench", "latency", "--model", tiny_llama, *workload, "--output", output, "-q")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found = json.loads(output.read_text())
    assert found["total_output_tokens"] == 14
    assert 0 < found["median_itl_ms"] < found["median_e2el_ms"]


def test_bench_refuses_a_workload_longer_than_the_context(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("bench", "latency", "--model", tiny_llama, "--input-len", 500, "--output-len", 100)
    assert result.returncode == 1
    assert "context of 512" in result.stderr


def test_collect_env(quire: RunQuire) -> None:
    found = json.loads(quire("collect-env", "--json").stdout)
    assert found["quire"]
    assert found["cores"] >= 1
    assert "memory free" in found


def test_pull_lists_the_built_in_models(quire: RunQuire) -> None:
    lines = quire("pull", "--list").stdout.splitlines()
    assert any(line.startswith("smollm2 ") for line in lines)
    assert quire("pull").returncode == 1
