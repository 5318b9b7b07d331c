"""Eight chats at once on the real SmolLM2: `make demo`."""

from __future__ import annotations

import time

from quire import LLM, SamplingParams

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colors.",
    "What is 2 + 2?",
    "Write one sentence about the sea.",
    "Which planet is known as the Red Planet?",
    "What do bees make?",
    "Give me a synonym for 'happy'.",
    "How many days are there in a week?",
]


def main() -> None:
    started = time.perf_counter()
    llm = LLM(model="smollm2")
    loaded = time.perf_counter()
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    outputs = llm.chat(conversations, SamplingParams(temperature=0.0, max_tokens=64))
    elapsed = time.perf_counter() - loaded
    for question, output in zip(QUESTIONS, outputs, strict=True):
        print(f"\n> {question}\n{output.outputs[0].text.strip()}")
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(
        f"\n{len(outputs)} answers, {num_tokens} tokens in {elapsed:.1f} s ({num_tokens / elapsed:.0f} tok/s);"
        f" the model loaded in {loaded - started:.1f} s."
    )


if __name__ == "__main__":
    main()
