"""OpenVINO GenAI, with the pipeline that is the faster one for each shape: its plain one for a single stream, the one with
continuous batching and prefix caching for long prompts and for many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import INT8_ACTIVATIONS, Environment, Peer, Variant
from benchmarks.peers.engines.protocol import TokenIds, logprobs_of, serve

LONG_PROMPT = 1024
CACHE_GB = 2
"""As many tokens as vLLM has, and more."""
MAX_BATCHED_TOKENS = 2048


class OpenVino:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        self._openvino = import_module("openvino")
        self._genai = import_module("openvino_genai")
        self._numpy = import_module("numpy")
        self._folder = Path(options["model"])
        return {"openvino": self._openvino.get_version(), "openvino-genai": self._genai.__version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        if len(prompts) == 1 and len(prompts[0]) < LONG_PROMPT:
            return [list(self._single_stream.generate(self._tensor(prompts[0]), config).tokens[0])]
        tensors = [self._tensor(prompt) for prompt in prompts]
        results = self._batching.generate(tensors, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        """By the model the pipelines run, without them: they give no logprobs of a prompt."""
        numpy, found = self._numpy, []
        for window in windows:
            request = self._plain.create_infer_request()
            tokens = numpy.array([window], numpy.int64)
            values = {
                "input_ids": tokens,
                "attention_mask": numpy.ones_like(tokens),
                "position_ids": numpy.arange(len(window), dtype=numpy.int64)[None],
                "beam_idx": numpy.zeros(1, numpy.int32),
            }
            known = {name for port in self._plain.inputs for name in port.get_names()}
            request.infer({name: value for name, value in values.items() if name in known})
            found.append(logprobs_of(window[1:], request.get_tensor("logits").data[0, :-1]))
        return found

    def _tensor(self, prompt: TokenIds) -> Any:
        return self._openvino.Tensor(self._numpy.array([prompt], self._numpy.int64))

    @cached_property
    def _single_stream(self) -> Any:
        return self._genai.LLMPipeline(str(self._folder), "CPU", ATTENTION_BACKEND="SDPA")

    @cached_property
    def _batching(self) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        return self._genai.ContinuousBatchingPipeline(str(self._folder), scheduler, "CPU")

    @cached_property
    def _plain(self) -> Any:
        return self._openvino.Core().compile_model(str(self._folder / "openvino_model.xml"), "CPU")


def install(environment: Environment) -> str:
    environment.pip(
        "install", "openvino-genai==2026.4.*", "optimum-intel[openvino]==2.2.*", "nncf", "torch==2.13.*", "safetensors"
    )
    # optimum brings one made for another torch, which breaks the import of transformers; the export does without it.
    environment.pip("uninstall", "-y", "torchvision")
    return "wheels"


PEER = Peer(
    "openvino",
    (
        Variant("OpenVINO fp16", 16, "openvino-fp16"),
        Variant("OpenVINO int8", 8, "openvino-int8", max_perplexity_change=INT8_ACTIVATIONS),
        Variant("OpenVINO int4", 4, "openvino-int4", max_perplexity_change=INT8_ACTIVATIONS),
    ),
    install,
)

if __name__ == "__main__":
    serve(OpenVino())
