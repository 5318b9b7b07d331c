"""What the datasets make of their files, and recorded traces of both kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.bench.serve.datasets import DatasetChoice, ServeWorkload, fit_to_context, make_workload
from quire.bench.serve.traces import TracedRequest, TraceScale, read_trace
from quire.bench.workloads import BenchRequest, Lengths
from quire.checkpoint.checkpoint import open_checkpoint
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:51.2224670,8790,55
"""
MOONCAKE = [
    {"timestamp": 3000, "input_length": 1200, "output_length": 3, "hash_ids": [0, 1, 5]},
    {"timestamp": 1000, "input_length": 1030, "output_length": 500, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 700, "output_length": 20, "hash_ids": [0, 7]},
]


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    """One token a byte."""
    return Tokenizer(open_checkpoint(str(tiny_llama)).tokenizer)


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)))
    return path


def prompts(workload: ServeWorkload) -> list[list[int]]:
    return [request.prompt_token_ids for request in workload.requests]


def outputs(workload: ServeWorkload) -> list[int]:
    return [request.num_output_tokens for request in workload.requests]


def test_random_prompts_mean_nothing(tokenizer: Tokenizer) -> None:
    choice = DatasetChoice(num_prompts=20, input_len=Lengths(5, 9), output_len=Lengths(3, 3), seed=1)
    workload = make_workload(choice, tokenizer)
    assert len(workload.requests) == 20
    assert all(5 <= len(prompt) <= 9 for prompt in prompts(workload))
    assert not {token_id for prompt in prompts(workload) for token_id in prompt} & tokenizer.special_token_ids
    assert workload == make_workload(choice, tokenizer)
    assert workload.arrivals is None


def test_prefix_repetition(tokenizer: Tokenizer) -> None:
    choice = DatasetChoice("prefix_repetition", num_prompts=12, input_len=Lengths(4, 4), prefix_len=16, num_prefixes=3)
    made = prompts(make_workload(choice, tokenizer))
    prefixes = [tuple(prompt[:16]) for prompt in made]
    assert {prefixes.count(prefix) for prefix in set(prefixes)} == {4}
    assert len(set(prefixes)) == 3
    assert prefixes[3:] != prefixes[:-3], "in random order"
    assert len({tuple(prompt[16:]) for prompt in made}) == 12
    assert {len(prompt) for prompt in made} == {20}


def test_pieces_of_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "sonnets.txt"
    path.write_text("".join(chr(97 + i % 26) for i in range(300)))
    choice = DatasetChoice("sonnet", path, num_prompts=3, input_len=Lengths(10, 10))
    workload = make_workload(choice, tokenizer)
    assert all(tokenizer.decode(prompt) in path.read_text() for prompt in prompts(workload))
    assert outputs(workload) == [128] * 3


ROWS: list[dict[str, Any]] = [
    {"conversations": [{"from": "human", "value": "question"}, {"from": "gpt", "value": "answers"}]},
    {"messages": [{"role": "user", "content": "asked"}, {"role": "assistant", "content": "yes"}]},
    {"prompt": "custom", "output_tokens": 77},
    {"prompt": "without", "conversations": 5, "output_tokens": -5},
]


@pytest.mark.parametrize("name", ["sharegpt", "custom"])
def test_outputs_are_as_long_as_recorded(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(ROWS))
    choice = DatasetChoice(name, path, num_prompts=4)
    found = {
        tokenizer.decode(request.prompt_token_ids): request.num_output_tokens
        for request in make_workload(choice, tokenizer).requests
    }
    assert found == {"question": 7, "asked": 3, "custom": 77, "without": 128}
    orders = {tuple(outputs(make_workload(replace(choice, seed=seed), tokenizer))) for seed in range(5)}
    assert len(orders) > 1, "in random order"
    chosen = DatasetChoice(name, path, num_prompts=4, output_len=Lengths(5, 5), input_len=Lengths(1, 6))
    workload = make_workload(chosen, tokenizer)
    assert outputs(workload) == [5] * 4
    assert sorted(map(len, prompts(workload))) == [5, 6, 6, 6]
    assert workload.num_cut == 2


def test_too_few_and_no_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(ROWS))
    with pytest.raises(InvalidRequestError, match="holds 4 prompts, but 5"):
        make_workload(DatasetChoice("custom", path, num_prompts=5), tokenizer)
    with pytest.raises(InvalidRequestError, match="add --dataset-path"):
        make_workload(DatasetChoice("timed-trace"), tokenizer)
    with pytest.raises(InvalidRequestError, match="must be one of random"):
        make_workload(DatasetChoice("nothing"), tokenizer)
    with pytest.raises(InvalidRequestError, match=r"is a \.txt file"):
        make_workload(DatasetChoice("sonnet", path), tokenizer)


def test_an_azure_trace(tokenizer: Tokenizer, azure: Path) -> None:
    """In order of time, from zero; scaled by two in time and a tenth in tokens; cut to 500 tokens."""
    traced = read_trace(azure)
    assert [one.num_input_tokens for one in traced] == [374, 396, 8790]
    assert [one.arrival for one in traced] == pytest.approx([0, 4.314579, 4.541877], abs=1e-6)
    scale = TraceScale(time=2, tokens=0.1, max_input=500)
    workload = make_workload(DatasetChoice("timed-trace", azure, trace=scale), tokenizer)
    assert [len(prompt) for prompt in prompts(workload)] == [37, 40, 500]
    assert outputs(workload) == [4, 11, 6]
    assert workload.arrivals == pytest.approx([0, 8.629158, 9.083754], abs=1e-6)
    assert workload.num_cut == 1
    assert prompts(workload)[0][:8] != prompts(workload)[1][:8], "nothing is shared"


def test_the_first_requests_of_a_trace(azure: Path) -> None:
    assert [one.num_input_tokens for one in read_trace(azure, limit=2)] == [374, 396]


@pytest.mark.parametrize("tokens", [1.0, 0.25])
def test_a_mooncake_trace_shares_what_its_hash_ids_share(tokenizer: Tokenizer, mooncake: Path, tokens: float) -> None:
    choice = DatasetChoice("timed-trace", mooncake, trace=TraceScale(tokens=tokens))
    workload = make_workload(choice, tokenizer)
    block = round(512 * tokens)
    second, third, first = prompts(workload)
    assert workload.arrivals == [0, 0, 2]
    assert [len(first), len(second), len(third)] == [round(n * tokens) for n in (1200, 1030, 700)]
    assert first[: 2 * block] == second[: 2 * block]
    assert first[2 * block : 2 * block + 2] != second[2 * block : 2 * block + 2]
    assert first[:block] == third[:block]
    assert first[block : block + 40] != third[block : block + 40]


def test_another_seed_shares_nothing(tokenizer: Tokenizer, mooncake: Path) -> None:
    one, other = (
        prompts(make_workload(DatasetChoice("timed-trace", mooncake, seed=seed), tokenizer))[0][:100] for seed in (0, 1)
    )
    assert one != other


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "TIME,X\n1,2\n", "line 2 is neither of an Azure"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,x,1\n", "line 2 is neither"),
        ("a.csv", "", "holds no requests"),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1 is neither"),
        ("a.jsonl", "{", "line 1 is neither"),
        ("a.jsonl", "[" * 100_000, "line 1 is neither"),
        ("a.jsonl", json.dumps(MOONCAKE[0] | {"input_length": 10**22}), "line 1 is neither .* are more than"),
        ("a.jsonl", json.dumps(MOONCAKE[0] | {"output_length": math.inf}), "line 1 is neither"),
        ("a.jsonl", json.dumps(MOONCAKE[0] | {"timestamp": 10**400}), "line 1 is neither"),
        ("a.jsonl", json.dumps(MOONCAKE[0] | {"timestamp": math.inf}), "line 1 is neither .*the timestamp is inf"),
        ("a.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,{10**22},1\n", "are more than"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "9" * 200_000, "cannot be read: field larger"),
        ("a.jsonl", None, "cannot be read"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_trace(path)


@pytest.mark.parametrize("scale", [{"time": 0.0}, {"tokens": -1.0}, {"time": float("inf")}])
def test_impossible_scales(scale: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError, match="scale must be above 0"):
        TraceScale(**scale)


def test_something_is_left_of_the_shortest_requests() -> None:
    scale, traced = TraceScale(tokens=0.001), TracedRequest(0, 10, 10)
    assert (scale.input_length(traced), scale.output_length(traced), scale.cuts(traced)) == (1, 1, False)


def test_requests_are_cut_to_the_context() -> None:
    lengths = {(10, 5): (10, 5), (10, 70): (10, 70), (90, 50): (40, 40), (90, 9): (71, 9), (1, 500): (1, 79)}
    requests = [BenchRequest(list(range(num_input)), num_output) for num_input, num_output in lengths]
    fitted = fit_to_context(ServeWorkload(requests, num_cut=2), max_model_len=100, margin=20)
    found = [(len(request.prompt_token_ids), request.num_output_tokens) for request in fitted.requests]
    assert found == list(lengths.values())
    assert fitted.requests[2].prompt_token_ids == list(range(40)), "cut at its end: what is shared stays shared"
    assert fitted.num_cut == 3 + 2
    with pytest.raises(InvalidRequestError, match="too short"):
        fit_to_context(ServeWorkload(requests), max_model_len=21, margin=20)
