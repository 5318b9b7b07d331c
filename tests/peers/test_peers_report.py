"""The page of results: what is compared with what, and whether it reaches what is asked."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.__main__ import parse_report
from benchmarks.peers.engines.peer import GEMMA, SMOLLM2
from benchmarks.peers.plot import set_scale
from benchmarks.peers.report import ROOT, Page, growth_section, quality_section, ratio_section, render
from benchmarks.peers.results import Results, read_results, significant
from matplotlib.figure import Figure as Canvas

MACHINE = {"cores": 2, "cpu": "C", "cpu features": "f", "memory": "1 GiB", "time": "2026-11-22T", "commit": "c" * 40}


def test_figures_keep_three_digits() -> None:
    assert [significant(value) for value in (0.3444, 3.444, 34.44, 344.4, 3444.4)] == [
        "0.344",
        "3.44",
        "34.4",
        "344",
        "3,444",
    ]


def run(engine: str, case: str = "b", **figures: float) -> dict[str, Any]:
    return {"case": case, "engine": engine, "round": 1, "figures": figures}


def content(engines: dict[str, Any], runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    settings = {
        "model": SMOLLM2,
        "rounds": 1,
        "cases": "ab",
        "perplexity_tokens": 2048,
        "reference": "fp32",
        "command": "python -m benchmarks.peers",
        **more.pop("settings", {}),
    }
    empty: dict[str, Any] = {"quality": {}, "absent": {}, "skipped": [], "rooflines": {}}
    machine = {**MACHINE, "uncommitted_changes": False}
    limits: dict[str, Any] = {"bandwidth": {}, "matmul": {}}
    default = {"versions": {}, "installed": "", "max_perplexity_change": 0.005}
    about = {name: {**default, **engine} for name, engine in engines.items()}
    run_of = {"settings": settings, "machine": machine, "limits": limits}
    made = {"cases": sorted({each["case"] for each in runs}), "path": Path("r.json"), **run_of}
    return {**empty, **run_of, "engines": about, "runs": runs, "about": [made], **more}


def quality(perplexity: float, change: float) -> dict[str, Any]:
    return {"perplexity": perplexity, "change": change, "num_equal": [40]}


def page_of(first: Results, *others: Results) -> str:
    return "\n".join(render(Page([Path("r.json")]), first, others))


def rows_of(results: Results) -> list[str]:
    return [line for line in ratio_section(results) if line.startswith(("| a", "| b"))]


def test_ratio_is_against_the_best_peer_of_the_same_class() -> None:
    engines = {"quire bf16": {"bits": 16}, "slow": {"bits": 16}, "fast": {"bits": 16}, "other": {"bits": 4}}
    speeds = {"quire bf16": 300.0, "slow": 100.0, "fast": 200.0, "other": 900.0}
    runs = [run(engine, prefill_tok_s=speed) for engine, speed in speeds.items()]
    (row,) = rows_of(Results(content(engines, runs)))
    assert row == "| b prefill tok/s | 16-bit | quire bf16 | – | 300 | fast | 200 | 1.50× | 1.20× | yes |"


def test_a_goal_names_its_rival_and_the_best_peer_stands_beside_it() -> None:
    """Of one stream in 4 bits 2.1 times llama.cpp is asked; a faster third engine is shown, and nothing asked against it."""
    engines = {name: {"bits": 4} for name in ("quire stored", "llama.cpp Q4_1", "third")}
    speeds = {"quire stored": 200.0, "llama.cpp Q4_1": 100.0, "third": 125.0}
    runs = [run(engine, "a", decode_tok_s=speed) for engine, speed in speeds.items()]
    results = Results(content(engines, runs))
    assert [row.split(" | ", 5)[5] for row in rows_of(results)] == [
        "third | 125 | 1.60× | – | – |",
        "llama.cpp Q4_1 | 100 | 2.00× | 2.10× | **no** |",
    ]
    (missing,) = [line for line in ratio_section(results) if line.startswith("Asked and not measured")]
    assert "a decode tok/s (4-bit, 1.70× onnxruntime-genai)" in missing
    assert "2.10×" not in missing


def test_shares_of_the_roofline_and_fixed_limits_are_goals_too() -> None:
    engines = {"quire bf16": {"bits": 16}, "quire stored": {"bits": 4}}
    runs = [run("quire bf16", "a", decode_tok_s=80.0), run("quire stored", "e", first_token_s=1.0)]
    rooflines = {"16": {"a": {"decode_tok_s": 100.0}}}
    section = list(ratio_section(Results(content(engines, runs, rooflines=rooflines))))
    assert "| a decode tok/s | 16-bit | quire bf16 | – | 80.0 | the roofline | 100 | 0.80× | 0.75× | yes |" in section
    assert "| e first token s | 4-bit | quire stored | – | 1.00 | target | 0.800 | 0.80× | 1.00× | **no** |" in section


def write(path: Path, found: dict[str, Any]) -> Path:
    path.write_text(json.dumps({name: value for name, value in found.items() if name != "about"}))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """What `--engines avx2`, `--model gemma` and a run of everything leave, in an order no page has."""
    held = {"bits": 4, "instruction_set": "avx2"}
    reference = quality(20.0, 0.0)
    avx2 = content(
        {"quire stored avx2": held, "llama.cpp Q4_1 avx2": held},
        [run("quire stored avx2", "a", decode_tok_s=60.0), run("llama.cpp Q4_1 avx2", "a", decode_tok_s=50.0)],
        rooflines={"4": {"a": {"decode_tok_s": 111.0}}},
        quality={"transformers fp32": reference, "quire stored avx2": quality(20.1, 0.005)},
        settings={"reference": "transformers fp32", "command": "python -m benchmarks.peers --engines avx2"},
    )
    gemma = content(
        {"quire stored": {"bits": 4}, "llama.cpp Q4_K_M": {"bits": 4}},
        [run("quire stored", prefill_tok_s=500.0), run("llama.cpp Q4_K_M", prefill_tok_s=100.0)],
        absent={"vllm": "no gemma3-270m in its format"},
        settings={"model": GEMMA},
    )
    everything = content(
        {"quire stored": {"bits": 4}, "llama.cpp Q4_1": {"bits": 4}},
        [run("quire stored", "a", decode_tok_s=90.0), run("llama.cpp Q4_1", "a", decode_tok_s=30.0)],
        rooflines={"4": {"a": {"decode_tok_s": 222.0}}},
    )
    found = {"avx2": avx2, "gemma": gemma, "everything": everything}
    return [write(tmp_path / f"{name}.json", value) for name, value in found.items()]


def test_models_and_instruction_sets_are_not_compared_with_each_other(files: list[Path]) -> None:
    first, *others = read_results(files)
    assert rows_of(first) == [
        "| a decode tok/s | 4-bit | quire stored | – | 90.0 | llama.cpp Q4_1 | 30.0 | 3.00× | 2.10× | yes |"
    ]
    assert {row for results in others for row in rows_of(results)} == {
        "| a decode tok/s | 4-bit | quire stored avx2 | +0.50% | 60.0 | llama.cpp Q4_1 avx2 | 50.0 | 1.20× | 1.00× | yes |",
        "| b prefill tok/s | 4-bit | quire stored | – | 500 | llama.cpp Q4_K_M | 100 | 5.00× | 4.00× | yes |",
    }


def test_the_page_has_a_section_of_each_with_its_own_shares_of_the_roofline(files: list[Path]) -> None:
    first, *others = read_results(files)
    page = page_of(first, *others)
    main, *sections = page.split("\n## smollm2, held to AVX2\n")
    assert "| 4-bit | **quire stored** | – | 90.0 · 41% |" in main
    assert "| 4-bit | **quire stored avx2** | 20.100 (+0.50%) | 60.0 · 54% |" in sections[0]
    repeated = f"--engines avx2 --perplexity-tokens 2048 --output {files[0]}"
    assert f"Repeat it: `python -m benchmarks.peers {repeated}`." in sections[0]
    assert "report r.json`" in main
    assert "\n## gemma3-270m\n" in page
    assert "- vllm could not be made ready: no gemma3-270m in its format" in page


def test_the_page_says_which_run_each_case_is_of(tmp_path: Path, files: list[Path]) -> None:
    later = content(
        {"quire stored": {"bits": 4}},
        [run("quire stored", "e", first_token_s=0.5)],
        settings={"command": "python -m benchmarks.peers --cases e"},
    )
    later["machine"] = {**later["machine"], "commit": "0123456789abcdef", "uncommitted_changes": ["src/x.py"]}
    later["limits"] = {"bandwidth": {}, "matmul": {"int8": 1e12}}
    first, *_ = read_results([*files, write(tmp_path / "later.json", later)])
    (line,) = (line for line in page_of(first).splitlines() if line.startswith("Case"))
    assert line.startswith("Case e: ")
    assert "commit 0123456789, with uncommitted changes to src/x.py, " in line
    assert f"by `python -m benchmarks.peers --cases e --perplexity-tokens 2048 --output {tmp_path}/later.json`." in line
    rates = [line for line in page_of(first).splitlines() if line.startswith(("- Case a: memory", "- Case e: memory"))]
    assert ["int8 1.00 TOP/s" in line for line in rates] == [False, True]


def test_perplexity_stands_beside_that_of_float32(files: list[Path]) -> None:
    avx2 = next(results for results in read_results(files) if results.instruction_set == "avx2")
    assert "| **quire stored avx2** | 20.100 | +0.50% | 0.5% | 40 |" in list(quality_section(avx2))


def lost_and_sound(**changes: float) -> Results:
    """`quire bf16` and two peers of its class, of which `fast` is the faster one."""
    names = {"quire": "quire bf16", "fast": "fast", "slow": "slow"}
    speeds = {"quire": 300.0, "fast": 200.0, "slow": 100.0}
    engines = {name: {"bits": 16} for name in names.values()}
    runs = [run(names[key], prefill_tok_s=speed) for key, speed in speeds.items()]
    found = {names[key]: quality(20 * (1 + change), change) for key, change in changes.items()}
    return Results(content(engines, runs, quality=found))


@pytest.mark.parametrize("change", [0.0051, -0.0051, math.inf])
def test_a_fast_variant_that_is_wrong_loses(change: float) -> None:
    (row,) = rows_of(lost_and_sound(quire=change))
    assert row.endswith("| 300 | fast | 200 | 1.50× | 1.20× | **lost** |")
    page = page_of(lost_and_sound(quire=change))
    assert "| 16-bit | quire bf16 (lost) | " in page
    assert "**quire bf16**" not in page


def test_a_wrong_peer_is_shown_and_the_best_right_one_is_what_counts() -> None:
    rows = rows_of(lost_and_sound(quire=0.004, fast=0.3, slow=-0.004))
    assert [row.split(" | ", 5)[5] for row in rows] == [
        "fast (lost) | 200 | 1.50× | – | – |",
        "slow | 100 | 3.00× | 1.20× | yes |",
    ]


def test_an_engine_that_lost_in_one_run_has_lost_on_the_page_of_several(tmp_path: Path) -> None:
    engines = {"quire bf16": {"bits": 16}}
    found = [
        content(engines, [run("quire bf16", case, prefill_tok_s=1.0)], quality={"quire bf16": quality(20.0, change)})
        for case, change in (("a", 0.001), ("b", -0.3), ("c", 0.002))
    ]
    (results,) = read_results([write(tmp_path / f"{index}.json", each) for index, each in enumerate(found)])
    assert results.has_lost("quire bf16")


def test_a_rate_is_better_than_none_within_the_limits() -> None:
    engines = {name: {"bits": 16} for name in ("quire bf16", "vLLM bf16")}
    runs = [run("quire bf16", "f", max_rate=1.5), run("vLLM bf16", "f", max_rate=0.0)]
    section = list(ratio_section(Results(content(engines, runs))))
    assert (
        "| f highest good rate 1/s | 16-bit | quire bf16 | – | 1.50 | vLLM bf16 | 0.000 | inf× | 1.60× | yes |"
        in section
    )


def test_cases_of_several_runs_make_one_page_with_the_rooflines_of_their_own_runs(tmp_path: Path) -> None:
    engines = {"quire bf16": {"bits": 16}}
    rooflines = {"16": {"a": {"decode_tok_s": 1.0}, "b": {"prefill_tok_s": 2.0}}}
    others = {"16": {"a": {"decode_tok_s": 3.0}, "b": {"prefill_tok_s": 4.0}}}
    found = [
        content(engines, [run("quire bf16", "a", decode_tok_s=1.0)], rooflines=rooflines),
        content(engines, [run("quire bf16", "b", prefill_tok_s=1.0)], rooflines=others),
    ]
    (results,) = read_results([write(tmp_path / f"{index}.json", each) for index, each in enumerate(found)])
    assert results.best_possible("a", "16", "decode_tok_s") == 1.0
    assert results.best_possible("b", "16", "prefill_tok_s") == 4.0


PAGES = (
    "benchmarks/RESULTS.md",
    "benchmarks/results/WITHOUT_AMX.md",
    "benchmarks/results/no_avx512/README.md",
    "benchmarks/results/zen4/README.md",
    "benchmarks/results/ice_lake/README.md",
)


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_the_command_on_it_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    committed = Path(name).read_text()
    (command,) = re.findall(r"this page from its JSON: `python -m benchmarks.peers report (.+?)`", committed)
    page = parse_report(shlex.split(command))
    assert page.path.resolve() == ROOT / name
    first, *others = read_results(page.results)
    assert "\n".join(render(page, first, others)) + "\n" == committed, f"python -m benchmarks.peers report {command}"


@pytest.mark.parametrize(
    ("values", "scale", "said"), [([1.0, 100.0], "log", "; logarithmic"), ([1.0, 5.0], "linear", "")]
)
def test_a_picture_says_where_its_axis_is_logarithmic(values: list[float], scale: str, said: str) -> None:
    axes = Canvas().subplots()
    assert set_scale(axes, values) == said
    assert axes.get_xscale() == scale


def test_what_is_left_out_is_named_without_addresses() -> None:
    reason = "RemoteError: No server answers at http://127.0.0.1:40107: timed out; start one with `quire serve`."
    runs = [run("vLLM bf16", "f", ttft_p50_ms=1.0)]
    skipped = [{"case": "f", "engine": "vLLM bf16", "reason": reason}]
    page = page_of(Results(content({"vLLM bf16": {"bits": 16}}, runs, skipped=skipped)))
    assert "- f, vLLM bf16, after round 1: its server did not answer in time" in page
    assert "127.0.0.1" not in page
    assert "- llama.cpp Q4_1 in f: not run on this page" in page
    assert "- vLLM bf16 in" not in page
    assert "held to" not in page


def test_a_highest_rate_has_a_note_that_it_is_one_search() -> None:
    engines = {"quire bf16": {"bits": 16}}
    note = "neither interleaved nor a median"
    assert note in page_of(Results(content(engines, [run("quire bf16", "f", max_rate=1.5)])))
    assert note not in page_of(Results(content(engines, [run("quire bf16", "f", ttft_p50_ms=1.5)])))


def test_growth_is_shown_where_it_lies_beside_the_page(tmp_path: Path) -> None:
    assert list(growth_section(tmp_path)) == []
    for name in ("img/growth.png", "results/growth.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps({"about": {**MACHINE, "uncommitted_changes": []}}))
    assert "2026-11-22, commit cccccccccc, on C" in "\n".join(growth_section(tmp_path))
