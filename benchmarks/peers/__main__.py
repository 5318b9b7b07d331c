"""quire against other engines on the same weights and prompts, interleaved in one run.

    python -m benchmarks.peers                      everything: installs the peers, measures, reports (about 90 minutes)
    python -m benchmarks.peers --quick --rounds 1   whether everything runs; the figures mean nothing
    python -m benchmarks.peers --engines quire,llama --cases ab
    python -m benchmarks.peers report benchmarks/results/peers.json

Run it from the repository's root, with nothing else running. Results: a JSON file with every run, a table in Markdown and
plots beside it. An engine that cannot be installed or started is named with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.peers.cases import CASES, FULL, QUICK
from benchmarks.peers.report import write_report
from benchmarks.peers.run import Options, run

from quire.checkpoint.cache_dir import cache_dir

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "benchmarks" / "RESULTS.md"


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        parser = argparse.ArgumentParser(prog="python -m benchmarks.peers report")
        parser.add_argument("results", type=Path, nargs="*", default=[RESULTS])
        parser.add_argument("--page", type=Path, default=PAGE, help="the Markdown file (%(default)s)")
        arguments = parser.parse_args(sys.argv[2:])
        write_report(arguments.results, arguments.page)
        return
    options, page = parse_options()
    # So that the engines are stopped when this is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if run(options) and page is not None:
        write_report([options.output], page)


def parse_options() -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=_words, default=[], metavar="WORD,...", help="names that hold one of these")
    parser.add_argument("--cases", default="".join(CASES), help="their letters (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="after a warm-up (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few tokens a case, to see whether everything runs")
    parser.add_argument("--quantization", type=_words, default=[], metavar="Q,...", help="more variants of quire")
    parser.add_argument("--max-rate", action="store_true", help="in case f also the highest rate within the limits")
    parser.add_argument("--skip-quality", action="store_true", help="no perplexity and no comparison of greedy tokens")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "peers", help="environments, weights (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="(%(default)s)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the Markdown file (%(default)s)")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"--cases are letters of {''.join(CASES)}, got {''.join(sorted(unknown))}")
    options = Options(
        root=ROOT,
        cache=arguments.cache.expanduser().resolve(),
        output=arguments.output,
        engines=arguments.engines,
        cases=arguments.cases,
        num_rounds=arguments.rounds,
        sizes=QUICK if arguments.quick else FULL,
        quantizations=arguments.quantization,
        max_rate=arguments.max_rate,
        quality=not arguments.skip_quality,
    )
    return options, None if arguments.quick else arguments.page


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    main()
