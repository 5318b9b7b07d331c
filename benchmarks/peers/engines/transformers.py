"""transformers, eager: a batch is padded on the left and runs until its last token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from benchmarks.peers.engines.peer import Environment, Peer, Variant
from benchmarks.peers.engines.protocol import TokenIds, logprobs_of, serve

PAD = 2


class Transformers:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        torch, transformers = import_module("torch"), import_module("transformers")
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        dtype = getattr(torch, options["dtype"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        return continue_batch(self._model, prompts, num_tokens)

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        return window_logprobs(self._model, windows)


def greedy(num_tokens: int) -> Any:
    """A GenerationConfig for exactly so many tokens: no id ends a sequence."""
    config = import_module("transformers").GenerationConfig
    return config(do_sample=False, max_new_tokens=num_tokens, eos_token_id=None, pad_token_id=PAD)


def continue_batch(model: Any, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
    """`model` is one of transformers; all prompts at once."""
    torch = import_module("torch")
    width = max(map(len, prompts))
    padded = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    with torch.inference_mode():
        output = model.generate(
            torch.tensor(padded), attention_mask=torch.tensor(mask), generation_config=greedy(num_tokens)
        )
    rows: list[TokenIds] = output[:, width:].tolist()
    return rows


def window_logprobs(model: Any, windows: list[TokenIds]) -> list[list[float]]:
    """Of each window's tokens but the first."""
    torch, found = import_module("torch"), []
    for window in windows:
        with torch.inference_mode():
            logits = model(torch.tensor([window])).logits[0, :-1]
        found.append(logprobs_of(window[1:], logits.float().numpy()))
    return found


def install(environment: Environment) -> str:
    environment.pip("install", "torch==2.13.*", "transformers==5.23.*", "accelerate", "safetensors")
    return "wheels"


REFERENCE = Variant("transformers fp32", 32, "hf-float32", "abcde", {"dtype": "float32"})
"""What the greedy tokens of the others are compared with."""

PEER = Peer(
    "transformers",
    (Variant("transformers bf16", 16, "hf-bfloat16", "abcde", {"dtype": "bfloat16"}),),
    install,
)

if __name__ == "__main__":
    serve(Transformers())
