"""What the prefix cache is worth: TTFT of a request whose first 1,024 tokens an earlier one had, against that one's.

python -m benchmarks.prefix_ttft [--model smollm2] [--dtype auto] [--output result.json]

Prefixes and suffixes are pieces of random tokens, new in every repeat; a warm-up pair comes first.
"""

from __future__ import annotations

import random

from benchmarks.script import argument_parser, random_prompt, write_json

from quire import LLM, SamplingParams
from quire.bench.statistics import spread

PARAMS = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prefix-len", type=int, default=1024)
    parser.add_argument("--suffix-len", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(0)
    cold, warm, cached = [], [], []
    with LLM(args.model, dtype=args.dtype) as llm:
        vocab_size = llm.get_tokenizer().vocab_size
        for repeat in range(args.repeats + 1):
            prefix = random_prompt(rng, args.prefix_len, vocab_size)
            suffixes = [random_prompt(rng, args.suffix_len, vocab_size) for _ in range(2)]
            (first, _), (second, num_cached) = (ttft(llm, prefix + suffix) for suffix in suffixes)
            if repeat:
                cold.append(first)
                warm.append(second)
                cached.append(num_cached)
        dtype = llm.info.dtype
    ratio = spread(cold).median / spread(warm).median
    print(f"{args.model}, {dtype}: {args.prefix_len} shared + {args.suffix_len} own tokens, {min(cached)} cached")
    print(f"TTFT first  {spread([1000 * value for value in cold])} ms")
    print(f"TTFT second {spread([1000 * value for value in warm])} ms: {ratio:.1f} times shorter")
    result = {"model": args.model, "dtype": dtype, "cold_s": cold, "warm_s": warm, "ratio": ratio}
    write_json(args.output, result)


def ttft(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many prompt tokens came from the cache."""
    output = llm.generate(prompt, PARAMS, use_tqdm=False)[0]
    first = output.metrics.first_token_time
    assert first is not None
    return first - output.metrics.arrival_time, output.num_cached_tokens


if __name__ == "__main__":
    main()
