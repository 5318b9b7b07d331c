"""quire itself, at the precisions it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.engines.peer import (
    EXACT_ACTIVATIONS,
    GEMMA,
    INT8_ACTIVATIONS,
    SMOLLM2,
    Environment,
    Peer,
    Server,
    Variant,
)
from benchmarks.peers.engines.protocol import TokenIds, logprobs_in, serve

if TYPE_CHECKING:
    from quire import LLM

BITS = {"none": 16, "stored": 4, "int8": 8, "int4": 4}
RUNNING = {"num_blocks": 4096, "preallocate_kv_cache": True}
"""The KV cache as the others have theirs, which take its memory when they start: 65,536 tokens, less than they have."""


class Quire:
    _llm: LLM

    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        # Imported here: case e counts what an import takes, and the orchestrator reads this file without a model.
        from quire import LLM, __version__

        logging.disable(logging.INFO)
        self._llm = LLM(**options)
        return {"quire": __version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        from quire import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate(list(prompts), params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        return prompt_logprobs(self._llm, windows)


def prompt_logprobs(llm: LLM, windows: list[TokenIds]) -> list[list[float]]:
    """Of each window's tokens but the first."""
    from quire import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    return logprobs_in(llm.generate(list(windows), params, use_tqdm=False), windows)


def variant(name: str, bits: int, config: Mapping[str, Any]) -> Variant:
    return Variant(name, bits, "file", "abcdef", dict(config), RUNNING)


def quantized(quantization: str) -> Variant:
    """Of whatever model is measured: quire rounds the file's weights itself."""
    bits = BITS.get(quantization, 8)
    made = variant(f"quire {quantization}", bits, {"quantization": quantization})
    # Activations beside 4 bits are rounded too, but finely enough for the narrower limit.
    allowed = INT8_ACTIVATIONS if bits == 8 else EXACT_ACTIVATIONS
    return replace(made, models=(SMOLLM2, GEMMA), max_perplexity_change=allowed)


def on_avx2() -> Variant:
    made = variant("quire stored avx2", 4, {"quantization": "stored", "instruction_set": "avx2"})
    return replace(made, cases="ab", instruction_set="avx2")


def with_int8_kv() -> Variant:
    """For the cases in which attention is a large part. OpenVINO's KV cache has 8 bits too, by its own default."""
    made = variant("quire int8 kv8", 8, {"quantization": "int8", "kv_cache_dtype": "int8"})
    as_many_tokens = RUNNING | {"num_blocks": RUNNING["num_blocks"] // 2}  # its blocks have 32
    return replace(made, cases="bc", max_perplexity_change=INT8_ACTIVATIONS, running_options=as_many_tokens)


REFERENCE = variant("quire fp32", 32, {"dtype": "float32"})
"""What the greedy tokens of others are compared with where transformers has no weights."""


def server(environment: Environment, variant: Variant, weights: Path, port: int) -> Server:
    flags = [word for name, value in variant.options.items() for word in _flag(name, value)]
    program = "import sys; from quire.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [PEER.python(environment), "-c", program, "serve", str(weights), "--port", str(port), *flags]
    return Server(command, "/health/ready")


def _flag(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


PEER = Peer(
    "quire",
    (
        variant("quire bf16", 16, {"dtype": "bfloat16"}),
        REFERENCE,
        quantized("stored"),
        replace(quantized("int8"), models=(SMOLLM2,)),
        with_int8_kv(),
        on_avx2(),
    ),
    serve=server,
)

if __name__ == "__main__":
    serve(Quire())
