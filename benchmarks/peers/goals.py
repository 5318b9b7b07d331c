"""What is asked of quire: how many times a rival's figure. Of times, how many times shorter."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.cases import Case, Figure
from benchmarks.peers.engines.peer import GEMMA, SMOLLM2
from benchmarks.peers.results import Results

BEST = "the best peer"
ROOFLINE = "the roofline"


@dataclass(frozen=True, slots=True)
class Goal:
    """`rival` is BEST of the class, ROOFLINE, what a peer's name begins with, or a fixed value of the figure."""

    case: str
    figure: str
    bits: str
    rival: str | float
    times: float
    model: str = SMOLLM2
    instruction_set: str | None = None


GOALS = (
    Goal("a", "decode_tok_s", "16", BEST, 1.25),
    Goal("a", "decode_tok_s", "16", ROOFLINE, 0.75),
    Goal("a", "decode_tok_s", "8", BEST, 1.8),
    Goal("a", "decode_tok_s", "4", "llama.cpp", 2.1),
    Goal("a", "decode_tok_s", "4", "onnxruntime-genai", 1.7),
    *(Goal("a", "ttft_ms", bits, BEST, 1 / 0.6) for bits in ("16", "8", "4")),
    Goal("b", "prefill_tok_s", "16", BEST, 1.2),
    Goal("b", "prefill_tok_s", "8", BEST, 3),
    Goal("c", "output_tok_s", "16", BEST, 1.6),
    Goal("c", "output_tok_s", "8", BEST, 4),
    Goal("d", "warm_s", "16", BEST, 1 / 0.5),
    Goal("e", "first_token_s", "4", 0.8, 1),
    Goal("e", "served_first_token_s", "4", 1.5, 1),
    Goal("e", "peak_memory_mb", "4", 350.0, 1),
    Goal("f", "ttft_p99_ms", "16", BEST, 1 / 0.6),
    Goal("f", "tpot_p50_ms", "16", BEST, 1 / 0.6),
    Goal("f", "max_rate", "16", BEST, 1.6),
    Goal("a", "decode_tok_s", "4", "llama.cpp", 1.8, GEMMA),
    Goal("b", "prefill_tok_s", "4", "llama.cpp", 4, GEMMA),
    Goal("a", "decode_tok_s", "4", "llama.cpp", 1, SMOLLM2, "avx2"),
)


@dataclass(frozen=True, slots=True)
class Rival:
    """What a figure is compared with. `times` is None where nothing is asked."""

    name: str
    value: float
    times: float | None


def goals_of(results: Results) -> list[Goal]:
    return [goal for goal in GOALS if (goal.model, goal.instruction_set) == (results.model, results.instruction_set)]


def rivals(results: Results, case: Case, bits: str, figure: Figure) -> list[Rival]:
    """Those that something is asked against, as far as they were measured, and in any case the fastest peer. The best one is
    the fastest whose perplexity is right."""
    peers = results.peers(case, bits, figure)
    asked = [
        goal for goal in goals_of(results) if (goal.case, goal.figure, goal.bits) == (case.letter, figure.key, bits)
    ]
    found = []
    for goal in asked:
        if goal.rival == ROOFLINE:
            best = results.best_possible(case.letter, bits, figure.key)
            found += [] if best is None else [Rival(ROOFLINE, best, goal.times)]
        elif isinstance(goal.rival, str):
            if goal.rival == BEST:
                wanted = [peer for peer in peers if not results.has_lost(peer[0])] or peers
            else:
                wanted = [peer for peer in peers if peer[0].startswith(goal.rival)]
            found += [Rival(*wanted[0], goal.times)] if wanted else []
        else:
            found.append(Rival("target", goal.rival, goal.times))
    if peers and all(peers[0][0] != rival.name for rival in found):
        found.insert(0, Rival(*peers[0], None))
    return found
