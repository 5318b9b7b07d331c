"""transformers, eager: a batch is padded on the left and runs until its last token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from benchmarks.peers.engines.peer import Environment, Peer, Variant
from benchmarks.peers.engines.protocol import TokenIds, serve

PAD = 2


class Transformers:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        self._torch = torch = import_module("torch")
        transformers = import_module("transformers")
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        dtype = getattr(torch, options["dtype"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
        self._config = transformers.GenerationConfig
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        width = max(map(len, prompts))
        padded = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        config = self._config(do_sample=False, max_new_tokens=num_tokens, eos_token_id=None, pad_token_id=PAD)
        with self._torch.inference_mode():
            output = self._model.generate(
                self._torch.tensor(padded), attention_mask=self._torch.tensor(mask), generation_config=config
            )
        rows: list[TokenIds] = output[:, width:].tolist()
        return rows

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        torch, found = self._torch, []
        for window in windows:
            with torch.inference_mode():
                logits = self._model(torch.tensor([window])).logits[0]
            logprobs = torch.log_softmax(logits.double(), -1)
            found.append(logprobs[torch.arange(len(window) - 1), torch.tensor(window[1:])].tolist())
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
