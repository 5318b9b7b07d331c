"""onnxruntime-genai with the 4-bit weights its own builder makes, one stream."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import Environment, Peer, Variant
from benchmarks.peers.engines.protocol import TokenIds, logprobs_of, serve


class OnnxRuntimeGenai:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        self._genai = import_module("onnxruntime_genai")
        self._numpy = import_module("numpy")
        set_threads(Path(options["model"]) / "genai_config.json", len(os.sched_getaffinity(0)))
        self._model = self._genai.Model(options["model"])
        return {"onnxruntime-genai": self._genai.__version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        return [self._continue(prompt, num_tokens) for prompt in prompts]

    def _continue(self, prompt: TokenIds, num_tokens: int) -> TokenIds:
        length = len(prompt) + num_tokens
        generator = self._generator(length)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token_id) for token_id in generator.get_sequence(0)[len(prompt) :]]

    def _generator(self, length: int) -> Any:
        """`min_length` keeps it from ending at the end of a text."""
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(do_sample=False, min_length=length, max_length=length)
        return self._genai.Generator(self._model, params)

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        found = []
        for window in windows:
            generator = self._generator(len(window) + 1)
            generator.append_tokens(window)
            logits = self._numpy.asarray(generator.get_output("logits"))[0, :-1]
            found.append(logprobs_of(window[len(window) - len(logits) :], logits))
        return found


def set_threads(path: Path, num_threads: int) -> None:
    """In the file of the weights, where the library looks for it; left to itself it counts physical cores."""
    config = json.loads(path.read_text())
    config["model"]["decoder"].setdefault("session_options", {})["intra_op_num_threads"] = num_threads
    path.write_text(json.dumps(config, indent=4))


def install(environment: Environment) -> str:
    environment.pip(
        "install", "onnxruntime-genai==0.18.0", "onnx", "onnx_ir", "transformers<5.24", "torch==2.13.*", "safetensors"
    )
    return "wheels"


PEER = Peer(
    "onnxruntime_genai",
    (Variant("onnxruntime-genai int4", 4, "onnx-int4", "abe"),),
    install,
)

if __name__ == "__main__":
    serve(OnnxRuntimeGenai())
