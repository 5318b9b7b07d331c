"""The parts of benchmarks/peers that decide what its figures mean."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.peers.__main__ import need, parse_runs
from benchmarks.peers.cases import CASES, FULL, Case, Figures
from benchmarks.peers.contender import START_BYTES, TURN_BYTES, Contender, make_room
from benchmarks.peers.engines.llama_cpp import common_prefix
from benchmarks.peers.engines.onnxruntime_genai import set_threads
from benchmarks.peers.engines.peer import GEMMA, SMOLLM2, Environment, Peer, Variant
from benchmarks.peers.interleave import Interleaved, idle_longest
from benchmarks.peers.machine import uncommitted_changes
from benchmarks.peers.process import EngineError, EngineProcess
from benchmarks.peers.quality import Reference, check_quality, num_equal_leading, perplexity, read_reference
from benchmarks.peers.record import Record
from benchmarks.peers.roofline import MachineLimits, Roofline, fraction, num_pairs
from benchmarks.peers.run import wanted_variants
from benchmarks.peers.serving import RATE_SECONDS, RATES, highest_good, num_requests_at
from benchmarks.peers.text import Text

from quire.checkpoint.model_config import LayerConfig, ModelConfig


def test_roofline_is_that_of_a_calculation_by_hand(smollm2_config: ModelConfig) -> None:
    """2,048 tokens are 0.58 TFLOP; a decode step reads 269 MB of weights and 256 tokens of KV, 5.9 MB."""
    limits = MachineLimits({16: 28e9}, {"bfloat16": 2.1e12})
    figures = Roofline(smollm2_config, 16, limits).figures(FULL)
    assert figures["b"]["prefill_tok_s"] == pytest.approx(2048 / (0.58e12 / 2.1e12), rel=0.01)
    assert figures["a"]["decode_tok_s"] == pytest.approx(28e9 / (269e6 + 5.9e6), rel=0.01)
    assert figures["d"]["warm_s"] < figures["d"]["cold_s"]


def test_roofline_of_gemma_has_its_head_and_its_windows(gemma_config: ModelConfig) -> None:
    """100.3 million weights a token and a head of 167.8 million; 2,048 tokens see 20.05 million earlier ones in all layers."""
    limits = MachineLimits({4: 28e9}, {"bfloat16": 1e12, "int8": 2e12})
    figures = Roofline(gemma_config, 4, limits).figures(FULL)
    products = 2 * 100.27e6 * 2048 + 2 * 167.77e6 + 4 * 1024 * 20.054e6
    assert figures["b"]["prefill_tok_s"] == pytest.approx(2048 / (products / 2e12), rel=1e-3)
    assert figures["a"]["decode_tok_s"] == pytest.approx(28e9 / (246_587_904 + 18 * 256 * 2 * 256), rel=1e-6)


def test_a_window_ends_what_a_token_sees() -> None:
    """The k-th token after c sees min(w, c + k) back; the formula is the integral of that."""
    assert num_pairs(100, 0, 1000) == 5000
    assert num_pairs(100, 50, 60) == 10 * 50 + 10**2 / 2 + 90 * 60
    assert num_pairs(100, 80, 60) == 100 * 60


def test_kv_that_sequences_share_is_read_once_and_not_beyond_the_window(gemma_config: ModelConfig) -> None:
    slow_memory = MachineLimits({4: 1.0}, {"bfloat16": 1e30, "int8": 1e30})
    layers = (LayerConfig(window=None, rope=None), LayerConfig(window=512, rope=None))
    model = dataclasses.replace(gemma_config, num_layers=2, layers=layers, quantized_bytes=0)
    step = Roofline(model, 4, slow_memory).decode_step([100.0] * 16, 1024)
    assert step == pytest.approx(2 * 256 * ((1024 + 1600) + (412 + 1600)))


def test_fraction_of_a_roofline_is_at_most_one_for_what_is_slower() -> None:
    assert fraction(50.0, 100.0, True) == 0.5
    assert fraction(2.0, 1.0, False) == 0.5


def test_batch_has_the_lengths_the_peers_were_measured_with() -> None:
    assert (len(FULL.batch), sum(FULL.batch)) == (32, 10_135)
    assert min(FULL.batch) >= 128
    assert max(FULL.batch) <= 512


def test_pieces_follow_the_seed_and_none_begins_where_another_does() -> None:
    text = Text(list(range(1000)))
    pieces = text.pieces([8] * 100, "a 1")
    assert pieces == text.pieces([8] * 100, "a 1")
    assert pieces != text.pieces([8] * 100, "a 2")
    assert len({piece[0] for piece in pieces}) == 100


def test_pieces_begin_as_the_model_wants_and_keep_their_lengths() -> None:
    text = Text(list(range(10, 100)), begin=(2,))
    assert text.windows(8, 24) == [[2, *range(start, start + 7)] for start in (10, 17, 24)]
    assert all(piece[0] == 2 and len(piece) == 8 for piece in text.pieces([8, 8], "a 1"))
    assert Text(list(range(24))).windows(8, 24) == [list(range(start, start + 8)) for start in (0, 8, 16)]


def variant_names(model: str, *engines: str) -> list[str]:
    return [variant.name for _, variant in wanted_variants(model, engines, (), "abcdef")[0]]


def test_what_is_held_to_an_instruction_set_is_measured_only_with_its_like() -> None:
    assert variant_names(SMOLLM2, "avx2") == ["quire stored avx2", "llama.cpp Q4_1 avx2"]
    assert not any("avx2" in name for name in (*variant_names(SMOLLM2), *variant_names(SMOLLM2, "llama", "stored")))


def test_int8_kv_is_measured_in_cases_b_and_c_beside_int8_weights_alone() -> None:
    found = {variant.name: variant.cases for _, variant in wanted_variants(SMOLLM2, ["quire int8"], (), "abc")[0]}
    assert found == {"quire int8": "abcdef", "quire int8 kv8": "bc"}
    assert [variant.name for _, variant in wanted_variants(SMOLLM2, ["quire int8"], (), "a")[0]] == ["quire int8"]


def test_peers_without_weights_of_the_model_are_named() -> None:
    assert variant_names(GEMMA) == ["quire stored", "llama.cpp Q4_K_M"]
    _, left_out = wanted_variants(GEMMA, [], (), "ab")
    assert set(left_out) == {"vllm", "openvino", "onnxruntime_genai", "transformers"}
    assert wanted_variants(SMOLLM2, [], (), "a")[1] == {}


def test_common_prefix_leaves_each_prompt_a_token() -> None:
    shared = list(range(100))
    assert common_prefix([[*shared, 1], [*shared, 2]]) == shared
    assert common_prefix([shared, [*shared, 2]]) == []
    assert common_prefix([shared]) == []


def test_equal_tokens_are_counted_up_to_the_first_other_one() -> None:
    assert num_equal_leading([1, 2, 3], [1, 2, 3]) == 3
    assert num_equal_leading([1, 9, 3], [1, 2, 3]) == 1


def test_a_token_without_a_chance_or_a_number_makes_an_infinite_perplexity() -> None:
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)
    assert perplexity([-1e6]) == math.inf
    assert perplexity([math.nan]) == math.inf


@pytest.mark.parametrize("num_good", range(len(RATES) + 1))
def test_the_highest_good_rate_is_found_with_few_runs(num_good: int) -> None:
    asked: list[float] = []

    def is_good(rate: float) -> bool:
        asked.append(rate)
        return rate in RATES[:num_good]

    assert highest_good(RATES, is_good) == (RATES[num_good - 1] if num_good else 0.0)
    assert len(asked) <= 5


def test_a_high_rate_is_asked_for_longer_than_its_burst() -> None:
    assert num_requests_at(2.0, FULL) == FULL.served
    assert num_requests_at(23.0, FULL) == 23 * RATE_SECONDS


def contender(name: str, tmp_path: Path, kind: type[Contender] = Contender) -> Contender:
    return kind(Peer("none", ()), Variant(name, 16, "none"), Environment(tmp_path), tmp_path, tmp_path)


def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "r.json", {}, {}, {}, {})


class Counting(Contender):
    """An engine that says 0 after everything and finds each token one half likely; it counts what it is asked."""

    num_asked = 0

    def generate(self, prompts: list[list[int]], num_tokens: int, timeout_s: float) -> tuple[float, list[list[int]]]:
        self.num_asked += 1
        return 1.0, [[0] * num_tokens for _ in prompts]

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.num_asked += 1
        return {"result": [[math.log(0.5)] * (len(window) - 1) for window in request["windows"]]}


def counting(folder: Path, *, installed: bool) -> Counting:
    peer = Peer("none", (), (lambda _: "") if installed else None)
    weights = folder / "weights"
    weights.mkdir(exist_ok=True)
    return Counting(peer, Variant("counting", 16, "none"), Environment(folder), weights, folder)


TEXT = Text(list(range(3000)))


def test_what_float32_says_is_measured_once_for_the_same_weights_and_text(tmp_path: Path) -> None:
    first, again = counting(tmp_path, installed=True), counting(tmp_path, installed=True)
    found = read_reference(first, TEXT, 1024, tmp_path)
    assert found.perplexity == pytest.approx(2.0)
    assert read_reference(again, TEXT, 1024, tmp_path) == found
    assert (first.num_asked > 0, again.num_asked) == (True, 0)
    read_reference(again, TEXT, 1536, tmp_path)
    assert again.num_asked == first.num_asked
    (tmp_path / "weights" / "model").write_bytes(b"other")
    read_reference(again, TEXT, 1024, tmp_path)
    assert again.num_asked == 2 * first.num_asked


def test_what_this_code_says_in_float32_is_measured_in_each_run(tmp_path: Path) -> None:
    engine = counting(tmp_path, installed=False)
    read_reference(engine, TEXT, 1024, tmp_path)
    num_asked = engine.num_asked
    read_reference(engine, TEXT, 1024, tmp_path)
    assert engine.num_asked == 2 * num_asked


def test_each_engine_is_held_against_float32_once_a_run(tmp_path: Path) -> None:
    engine, found = counting(tmp_path, installed=True), record(tmp_path)
    reference = Reference(perplexity=2.5, tokens=[[0, 0, *[1] * 38]] * 4)
    check_quality(reference, [engine], TEXT, 1024, found)
    assert found.quality["counting"]["change"] == pytest.approx(-0.2)
    assert found.quality["counting"]["num_equal"] == [2] * 4
    check_quality(None, [engine], TEXT, 1024, found)
    assert found.quality["counting"]["perplexity"] == pytest.approx(2.0)
    assert found.quality["counting"]["change"] is None


OWN_PROCESSES: Case = dataclasses.replace(CASES["e"], limit_s=100)


def test_engines_take_turns_and_a_failing_one_is_left_out(tmp_path: Path) -> None:
    order = []

    def measure(contender: Contender, number: int, limit_s: float) -> Figures:
        order.append((contender.name, number))
        if contender.name == "broken" and number == 1:
            raise EngineError("no answer")
        return {"first_token_s": 1.0}

    found = record(tmp_path)
    engines = [contender(name, tmp_path) for name in ("sound", "broken")]
    Interleaved(OWN_PROCESSES, measure, found).run(engines, 2)
    assert order == [("sound", 0), ("broken", 0), ("broken", 1), ("sound", 1), ("sound", 2)]
    assert [run["round"] for run in found.runs] == [1, 2]
    assert found.skipped == [{"case": "e", "engine": "broken", "reason": "no answer"}]


def test_each_round_begins_with_the_next_engine(tmp_path: Path) -> None:
    order: dict[int, str] = {}

    def measure(contender: Contender, number: int, limit_s: float) -> Figures:
        order[number] = order.get(number, "") + contender.name
        return {"first_token_s": 1.0}

    Interleaved(OWN_PROCESSES, measure, record(tmp_path)).run([contender(name, tmp_path) for name in "abc"], 3)
    assert list(order.values()) == ["abc", "bca", "cab", "abc"]


class Process:
    """A worker's process that does nothing but end."""

    def freeze(self) -> None: ...

    def stop(self) -> None: ...


class Holding(Contender):
    """An engine whose worker holds memory."""

    def start(self, variant: Variant) -> Any:
        return Process()


MAY_BE_SIDE_BY_SIDE = 2


@pytest.fixture
def three_for_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Contender]:
    """Engines of which two leave enough memory for a third to start and one not, or for their own turns."""
    engines = [contender(name, tmp_path, Holding) for name in "abc"]

    def read_machine() -> SimpleNamespace:
        num_running = sum(engine.worker is not None for engine in engines)
        return SimpleNamespace(free_memory=START_BYTES if num_running < MAY_BE_SIDE_BY_SIDE else TURN_BYTES)

    monkeypatch.setattr("benchmarks.peers.contender.read_machine", read_machine)
    return engines


def test_who_has_just_had_a_turn_makes_room_and_all_turns_begin_with_a_run_that_does_not_count(
    three_for_two_places: list[Contender], tmp_path: Path
) -> None:
    order = []

    def measure(contender: Contender, number: int, limit_s: float) -> Figures:
        running = "".join(engine.name for engine in three_for_two_places if engine.worker is not None)
        order.append((contender.name, number, running))
        return {"output_tok_s": 1.0}

    found = record(tmp_path)
    Interleaved(CASES["c"], measure, found).run(three_for_two_places, 2)
    assert order == [
        *[("a", 0, "a"), ("b", 0, "ab"), ("c", 0, "ac")],
        *[("b", -1, "bc"), ("b", 1, "bc"), ("c", -1, "bc"), ("c", 1, "bc"), ("a", -1, "ab"), ("a", 1, "ab")],
        *[("c", -2, "ac"), ("c", 2, "ac"), ("a", -2, "ac"), ("a", 2, "ac"), ("b", -2, "bc"), ("b", 2, "bc")],
    ]
    assert [(run["engine"], run["round"]) for run in found.runs] == [
        *[("b", 1), ("c", 1), ("a", 1)],
        *[("c", 2), ("a", 2), ("b", 2)],
    ]


def test_a_running_engine_that_has_grown_makes_room_for_others_first_of_all_those_without_a_turn(
    three_for_two_places: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three_for_two_places
    for engine in three_for_two_places:
        engine.ensure_started()
    assert idle_longest(second, [first, second], three_for_two_places) == [third, first]
    make_room(second, [third, first])
    assert None not in (first.worker, second.worker, third.worker)
    full = SimpleNamespace(free_memory=TURN_BYTES - 1)
    monkeypatch.setattr("benchmarks.peers.contender.read_machine", lambda: full)
    make_room(second, [third])
    assert (first.worker is None, second.worker is None, third.worker is None) == (False, False, True)


def test_what_runs_write_is_no_uncommitted_change(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True)

    code, results = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "peers.json"
    results.parent.mkdir(parents=True)
    for path in (code, results):
        path.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "m")
    results.write_text("2")
    assert uncommitted_changes(tmp_path) == []
    code.write_text("2")
    assert uncommitted_changes(tmp_path) == ["code.py"]


def test_all_is_three_runs_with_what_is_said_beside_it() -> None:
    runs = [options for options, _ in parse_runs(["--all", "--quick"])]
    assert [(run.model, run.engines, run.cases, run.max_rate) for run in runs] == [
        (SMOLLM2, [], "abcdef", True),
        (GEMMA, [], "ab", False),
        (SMOLLM2, ["avx2"], "a", False),
    ]
    assert len({run.output for run in runs}) == 3
    assert "--quick" in runs[1].command
    with pytest.raises(SystemExit, match="--all chooses --cases itself: leave it out"):
        parse_runs(["--all", "--cases=a"])


def test_a_missing_package_ends_a_run_before_it_begins() -> None:
    with pytest.raises(SystemExit, match="no_such_package cannot be imported: run `make bench`"):
        need("json", "no_such_package")


def test_onnxruntime_gets_its_number_of_threads_where_it_looks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "genai_config.json"
    path.write_text('{"model": {"decoder": {"session_options": {"log_id": "x"}}}}')
    set_threads(path, 2)
    assert json.loads(path.read_text())["model"]["decoder"]["session_options"] == {
        "log_id": "x",
        "intra_op_num_threads": 2,
    }


def test_a_worker_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    process = EngineProcess([sys.executable, "-c", "input(); input()"], {}, tmp_path / "log")
    with pytest.raises(EngineError, match="no answer within"):
        process.ask({"op": "load"}, 0.2)
    process.freeze()
    process.stop()
    assert not process.is_running


def test_a_server_may_write_as_much_as_it_likes(tmp_path: Path) -> None:
    """More than a pipe holds: vLLM writes a line a request."""
    log = tmp_path / "log"
    writes = "print('served\\n' * 100_000, flush=True); import sys; sys.stderr.write('done\\n'); sys.exit(3)"
    process = EngineProcess([sys.executable, "-c", writes], {}, log, is_asked=False)
    deadline = time.monotonic() + 60
    while process.is_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.failure() == "it ended with code 3: done"
    process.stop()
    assert log.read_text().count("served") == 100_000
