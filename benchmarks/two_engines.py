"""What two engines on one machine cost each other: tokens a second of one alone, and of two at the same time, together.

    python -m benchmarks.two_engines
    python -m benchmarks.two_engines --rounds 5 --seconds 10

Two processes, each with an engine that has all cores, as two servers started side by side would. In each round one of them works,
then both. If they shared the machine without any loss, both together would be as fast as one alone. Prints medians over the rounds
and the median of the rounds' ratios, both / one; writes JSON with --output.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from multiprocessing.connection import Connection

from benchmarks.peers.machine import describe
from benchmarks.script import argument_parser, random_prompt, write_json

from quire import LLM, SamplingParams

KINDS: dict[str, tuple[int, int, int]] = {
    "one stream": (1, 32, 64),
    "8 streams": (8, 32, 64),
    "prompts of 512": (4, 512, 1),
}
"""Requests at a time, tokens of a prompt, tokens of an output."""


def serve(model: str, connection: Connection) -> None:
    """Answers (kind, when to begin, seconds) with the tokens a second that it computed, until None comes."""
    rng = random.Random(0)
    with LLM(model, backend="cpu", enable_prefix_caching=False, seed=0) as llm:

        def computed(num_requests: int, num_prompt_tokens: int, num_output_tokens: int) -> int:
            prompts = [{"prompt_token_ids": random_prompt(rng, num_prompt_tokens)} for _ in range(num_requests)]
            params = SamplingParams(temperature=0, max_tokens=num_output_tokens, ignore_eos=True)
            llm.generate(prompts, params, use_tqdm=False)
            return num_requests * (num_output_tokens if num_output_tokens > 1 else num_prompt_tokens)

        for shape in KINDS.values():
            computed(*shape)
        connection.send("ready")
        while (order := connection.recv()) is not None:
            kind, begin, seconds = order
            time.sleep(max(0.0, begin - time.time()))
            num_tokens, now, end = 0, time.time(), begin + seconds
            while now < end:
                num_tokens += computed(*KINDS[kind])
                now = time.time()
            connection.send(num_tokens / (now - begin))


def rate(engines: list[Connection], kind: str, seconds: float) -> float:
    """Of these engines together, at the same time."""
    begin = time.time() + 0.2
    for engine in engines:
        engine.send((kind, begin, seconds))
    return sum(engine.recv() for engine in engines)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(2)]
    engines = [ours for ours, _ in pairs]
    processes = [context.Process(target=serve, args=(args.model, theirs), daemon=True) for _, theirs in pairs]
    for process in processes:
        process.start()
    for engine in engines:
        assert engine.recv() == "ready"
    figures = {}
    print(f"{'tokens a second':16}{'one':>10}{'both':>10}{'both / one':>12}   of the rounds")
    for kind in KINDS:
        rounds = [
            (rate([engines[number % 2]], kind, args.seconds), rate(engines, kind, args.seconds))
            for number in range(args.rounds)
        ]
        one, both = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        ratios = sorted(together / alone for alone, together in rounds)
        figures[kind] = {"one": one, "both": both, "ratio": statistics.median(ratios), "rounds": rounds}
        print(
            f"{kind:16}{one:10.1f}{both:10.1f}{statistics.median(ratios):12.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
    for engine, process in zip(engines, processes, strict=True):
        engine.send(None)
        process.join()
    write_json(args.output, {"about": describe(), "tokens_a_second": figures})


if __name__ == "__main__":
    main()
