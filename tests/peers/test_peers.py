"""The parts of benchmarks/peers that decide what its figures mean."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.peers.cases import CASES, FULL, Case, Figures
from benchmarks.peers.contender import Contender
from benchmarks.peers.convert import to_bfloat16
from benchmarks.peers.engines.llama_cpp import common_prefix
from benchmarks.peers.engines.peer import Environment, Peer, Variant
from benchmarks.peers.interleave import Interleaved
from benchmarks.peers.process import EngineError, EngineProcess
from benchmarks.peers.quality import num_equal_leading
from benchmarks.peers.record import Record
from benchmarks.peers.report import Results, ratio_section, significant
from benchmarks.peers.roofline import MachineLimits, Roofline, fraction
from benchmarks.peers.text import Text

from quire.checkpoint.model_config import LayerConfig, ModelConfig

SMOLLM2 = ModelConfig(
    family="llama",
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    layers=(LayerConfig(window=None, rope=None),) * 30,
    activation="silu",
    norm_eps=1e-5,
    attention_scale=0.125,
    tie_word_embeddings=True,
)


def test_roofline_is_that_of_a_calculation_by_hand() -> None:
    """2,048 tokens are 0.58 TFLOP; a decode step reads 269 MB of weights and 256 tokens of KV, 5.9 MB."""
    limits = MachineLimits({16: 28e9}, {"bfloat16": 2.1e12})
    figures = Roofline(SMOLLM2, 16, limits).figures(FULL)
    assert figures["b"]["prefill_tok_s"] == pytest.approx(2048 / (0.58e12 / 2.1e12), rel=0.01)
    assert figures["a"]["decode_tok_s"] == pytest.approx(28e9 / (269e6 + 5.9e6), rel=0.01)
    assert figures["d"]["warm_s"] < figures["d"]["cold_s"]


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


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    values = np.random.default_rng(0).standard_normal(10_000, np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    assert (to_bfloat16(values) == expected).all()


def test_common_prefix_leaves_each_prompt_a_token() -> None:
    shared = list(range(100))
    assert common_prefix([[*shared, 1], [*shared, 2]]) == shared
    assert common_prefix([shared, [*shared, 2]]) == []
    assert common_prefix([shared]) == []


def test_equal_tokens_are_counted_up_to_the_first_other_one() -> None:
    assert num_equal_leading([1, 2, 3], [1, 2, 3]) == 3
    assert num_equal_leading([1, 9, 3], [1, 2, 3]) == 1


def test_figures_keep_three_digits() -> None:
    assert [significant(value) for value in (0.3444, 3.444, 34.44, 344.4, 3444.4)] == [
        "0.344",
        "3.44",
        "34.4",
        "344",
        "3,444",
    ]


def contender(name: str, tmp_path: Path) -> Contender:
    return Contender(Peer("none", ()), Variant(name, 16, "none"), Environment(tmp_path), tmp_path, tmp_path, tmp_path)


def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "r.json", {}, {}, {}, {})


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
    assert order == [("sound", 0), ("broken", 0), ("sound", 1), ("broken", 1), ("sound", 2)]
    assert [run["round"] for run in found.runs] == [1, 2]
    assert found.skipped == [{"case": "e", "engine": "broken", "reason": "no answer"}]


def test_a_worker_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    process = EngineProcess([sys.executable, "-c", "input(); input()"], {}, tmp_path / "log", tmp_path)
    with pytest.raises(EngineError, match="no answer within"):
        process.ask({"op": "load"}, 0.2)
    process.freeze()
    process.stop()
    assert not process.is_running


def test_ratio_is_against_the_best_peer_of_the_same_class() -> None:
    def run(engine: str, value: float) -> dict[str, object]:
        return {"case": "b", "engine": engine, "round": 1, "figures": {"prefill_tok_s": value}}

    engines = {"quire bf16": {"bits": 16}, "slow": {"bits": 16}, "fast": {"bits": 16}, "other": {"bits": 4}}
    runs = [run("quire bf16", 300.0), run("slow", 100.0), run("fast", 200.0), run("other", 900.0)]
    rows = list(ratio_section(Results({"runs": runs, "engines": engines, "rooflines": {}})))
    assert rows[-2] == "| b prefill tok/s | 16-bit | quire bf16 | 300 | fast | 200 | 1.50× |"
