"""quire against other engines on the same weights and prompts, interleaved in one run.

    python -m benchmarks.peers                      SmolLM2: installs the peers, measures, reports (about 90 minutes)
    python -m benchmarks.peers --all                with the highest rates, and Gemma and AVX2 on the same page: `make bench`
    python -m benchmarks.peers --model gemma        Gemma's GGUF, native, against llama.cpp on the same file
    python -m benchmarks.peers --engines avx2       both held to AVX2
    python -m benchmarks.peers --quick --rounds 1   whether everything runs; the figures mean nothing
    python -m benchmarks.peers --engines quire,llama --cases ab
    python -m benchmarks.peers report benchmarks/results/peers*.json

Before its speed each engine's perplexity of botchan.txt is measured, with its own kernels and KV cache: it stands beside the
speed, and one that is too far from float32's loses, however fast. Of OpenVINO it is that of the compiled model without the
pipelines, which give no logprobs of a prompt, and so without their KV cache of 8 bits. What float32 says is measured once and
kept.

Run it from the repository's root, in an environment with `.[dev]` (gguf, matplotlib), with nothing else running. Results: a
JSON file with every run; of everything also a page in Markdown and plots. The page of a part, or of several, is made by
`report`. An engine that cannot be installed or started is named with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.cases import CASES, FULL, QUICK
from benchmarks.peers.engines.peer import GEMMA, SMOLLM2
from benchmarks.peers.quality import TEXT_TOKENS, WINDOW
from benchmarks.peers.report import PAGE, TITLE, Page, print_ratios, write_report
from benchmarks.peers.run import Options, run
from benchmarks.script import ROOT

from quire.checkpoint.cache_dir import cache_dir

RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
MODELS = {"smollm2": SMOLLM2, "gemma": GEMMA}
CASES_OF = {SMOLLM2: "".join(CASES), GEMMA: "ab"}
ROUNDS = 3
ALL = (["--max-rate"], ["--model", "gemma"], ["--engines", "avx2", "--cases", "a"])
"""The runs of `--all`."""


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        need("matplotlib")
        write_report(parse_report(sys.argv[2:]))
        return
    parsed = parse_runs(sys.argv[1:])
    page = parsed[0][1]
    need("gguf", *(["matplotlib"] if page is not None else []))
    # So that the engines are stopped when this is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measured = [options.output for options, _ in parsed if run(options)]
    if measured:
        print_ratios(measured)
        if page is not None:
            write_report(Page(measured, page))


def need(*packages: str) -> None:
    """Before anything is measured, not an hour later."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} cannot be imported: run `make bench`, or `pip install -e '.[dev]'` first.")


def parse_runs(words: Sequence[str]) -> list[tuple[Options, Path | None]]:
    """What to run one after the other; one page is made of all, the first's."""
    if "--all" not in words:
        return [parse_options(words)]
    common = [word for word in words if word != "--all"]
    twice = sorted({"--model", "--engines", "--cases", "--output"} & {word.split("=")[0] for word in common})
    if twice:
        sys.exit(f"--all chooses {', '.join(twice)} itself: leave {'it' if len(twice) == 1 else 'them'} out.")
    return [parse_options([*more, *common]) for more in ALL]


def parse_report(words: Sequence[str]) -> Page:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers report")
    parser.add_argument("results", type=Path, nargs="*", default=[RESULTS])
    parser.add_argument("--page", type=Path, default=PAGE, help="the Markdown file (%(default)s)")
    parser.add_argument("--title", default=TITLE, help="its heading (%(default)s)")
    parser.add_argument("--intro", type=Path, metavar="FILE", help="Markdown that stands below the heading")
    arguments = parser.parse_args(words)
    return Page(arguments.results, arguments.page, arguments.title, arguments.intro)


def parse_options(words: Sequence[str]) -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--all", action="store_true", help="three runs: everything of SmolLM2 with --max-rate, Gemma, AVX2; one page"
    )
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="(%(default)s)")
    parser.add_argument("--engines", type=_words, default=[], metavar="WORD,...", help="names that hold one of these")
    parser.add_argument("--cases", help="their letters (all; for gemma ab)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="after a warm-up (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few tokens a case, to see whether everything runs")
    parser.add_argument("--quantization", type=_words, default=[], metavar="Q,...", help="more variants of quire")
    parser.add_argument("--max-rate", action="store_true", help="in case f also the highest rate within the limits")
    parser.add_argument(
        "--perplexity-tokens", type=int, default=TEXT_TOKENS, metavar="N", help="of the text, in windows (%(default)s)"
    )
    parser.add_argument("--skip-quality", action="store_true", help="no perplexity and no comparison of greedy tokens")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "peers", help="environments, weights (%(default)s)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="(in benchmarks/results, named for what is measured)"
    )
    parser.add_argument(
        "--page", type=Path, help="the Markdown file (benchmarks/RESULTS.md when everything is measured)"
    )
    arguments = parser.parse_args(words)
    model = MODELS[arguments.model]
    cases = arguments.cases or CASES_OF[model]
    if arguments.perplexity_tokens < WINDOW:
        parser.error(f"--perplexity-tokens must be at least one window of {WINDOW}, got {arguments.perplexity_tokens}")
    unknown = set(cases) - set(CASES)
    if unknown:
        parser.error(f"--cases are letters of {''.join(CASES)}, got {''.join(sorted(unknown))}")
    options = Options(
        command=command(arguments),
        cache=arguments.cache.expanduser().resolve(),
        output=arguments.output or default_output(arguments),
        model=model,
        engines=arguments.engines,
        cases=cases,
        num_rounds=arguments.rounds,
        sizes=QUICK if arguments.quick else FULL,
        quantizations=arguments.quantization,
        max_rate=arguments.max_rate,
        perplexity_tokens=0 if arguments.skip_quality else arguments.perplexity_tokens,
    )
    is_all = model == SMOLLM2 and not arguments.engines and cases == CASES_OF[model] and not arguments.quick
    return options, arguments.page or (PAGE if is_all else None)


def command(arguments: argparse.Namespace) -> str:
    """What repeats the run, without where its own files are kept; `report` adds where the results are."""
    chosen = {"--engines": ",".join(arguments.engines), "--cases": arguments.cases}
    chosen |= {"--quantization": ",".join(arguments.quantization)}
    if arguments.rounds != ROUNDS:
        chosen |= {"--rounds": str(arguments.rounds)}
    if not arguments.skip_quality:
        chosen |= {"--perplexity-tokens": str(arguments.perplexity_tokens)}
    if arguments.model != "smollm2":
        chosen = {"--model": arguments.model} | chosen
    words = [word for flag, value in chosen.items() if value for word in (flag, value)]
    flags = {"--quick": arguments.quick, "--max-rate": arguments.max_rate, "--skip-quality": arguments.skip_quality}
    words += [flag for flag, is_set in flags.items() if is_set]
    return shlex.join(["python", "-m", "benchmarks.peers", *words])


def default_output(arguments: argparse.Namespace) -> Path:
    """Of a part a file of its own: it does not replace the results of everything."""
    model = "" if arguments.model == "smollm2" else arguments.model
    parts = [model, *arguments.engines, arguments.cases or "", "quick" if arguments.quick else ""]
    words = [part.replace(" ", "_") for part in parts if part]
    return RESULTS.with_stem("_".join([RESULTS.stem, *words]))


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    main()
