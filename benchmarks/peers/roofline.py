"""The least time each case can take on a machine: its bytes at the memory's rate, its products at the peak rate.

Of the model (SmolLM2: L = 30 layers, d = 576, f = 1536, H·h = 576, KV·h = 192, V = 49,152; Gemma 3 270M: L = 18, d = 640,
f = 2048, H·h = 1024, KV·h = 256, V = 262,144, and 15 of its layers see w = 512 tokens, the others all):

- P = L (d (H·h + 2 KV·h) + H·h d + 3 d f), the weights every token is multiplied with; head = V d, multiplied with only
  where logits are needed; W = (P + head) × bytes a weight of the precision class; for 4 bits what the file's tensors take.
- KV of a token in one layer: 2 KV·h × bytes of a KV value.

Of the machine: R(bytes), the read bandwidth over a set of that size; F, the peak of matrix products in the class's type
(4-bit weights: the 8-bit rate, their activations being 8-bit at best; attention: bfloat16's rate at best).

A pass over t tokens, of which q want logits; its layers, each with its own window w, together see p pairs of a token and
one before it and read k tokens of KV:

    max((W + KV k) / R, (2 P t + 2 head q) / F + 4 H·h p / F_attention)

- prefill of prompts of s tokens: t = Σ s, q = one each; a layer that sees all adds Σ s² / 2 (and s × those cached before
  it) to p and those cached to k; one with a window no more than w a token to p and w to k;
- one decode step of n sequences: t = q = n; a layer adds each sequence's context to k, w of it at most, and what sequences
  share once; p = k.

A case is the sum of its passes: one for all its prompts, then one for each further token of its sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.cases import Figures, Sizes

from quire.checkpoint.model_config import ModelConfig

BYTES_A_WEIGHT = {32: 4.0, 16: 2.0, 8: 34 / 32}
"""8-bit: a 16-bit scale for 32 weights, as Q8_0 has it. 4-bit: what the GGUF itself takes (`weight_bytes`)."""
KV_BYTES = {32: 4, 16: 2, 8: 1, 4: 1}
MATMUL_TYPE = {32: "float32", 16: "bfloat16", 8: "int8", 4: "int8"}


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """`bandwidth`: bytes/s over the weights of each class. `matmul`: operations/s by type."""

    bandwidth: Mapping[int, float]
    matmul: Mapping[str, float]


def layer_weights(model: ModelConfig) -> int:
    attention = model.hidden_size * model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    return model.num_layers * (attention + 3 * model.hidden_size * model.intermediate_size)


def head_weights(model: ModelConfig) -> int:
    return model.vocab_size * model.hidden_size


def weight_bytes(model: ModelConfig, bits: int) -> float:
    if bits == 4:
        assert model.quantized_bytes is not None, "the 4-bit class is that of the GGUF file"
        return model.quantized_bytes
    return (layer_weights(model) + head_weights(model)) * BYTES_A_WEIGHT[bits]


@dataclass(frozen=True, slots=True)
class Roofline:
    """One precision class of one model on one machine. Methods give seconds."""

    model: ModelConfig
    bits: int
    limits: MachineLimits

    def one_pass(self, num_tokens: float, num_logits: int, num_pairs: float, num_kv_tokens: float) -> float:
        """Pairs and tokens of KV are sums over the layers."""
        model, rate = self.model, self.limits.matmul[MATMUL_TYPE[self.bits]]
        attention_rate = rate if self.bits == 32 else max(rate, self.limits.matmul["bfloat16"])
        kv_bytes = 2 * model.num_kv_heads * model.head_dim * KV_BYTES[self.bits]
        num_bytes = weight_bytes(model, self.bits) + kv_bytes * num_kv_tokens
        products = 2 * layer_weights(model) * num_tokens + 2 * head_weights(model) * num_logits
        attention = 4 * model.num_heads * model.head_dim * num_pairs
        return max(num_bytes / self.limits.bandwidth[self.bits], products / rate + attention / attention_rate)

    def prefill(self, lengths: Sequence[int], num_cached: int = 0) -> float:
        """All prompts in one pass, each after the same `num_cached` tokens."""
        pairs = self._over_layers(lambda window: sum(num_pairs(length, num_cached, window) for length in lengths))
        cached = self._over_layers(lambda window: min(num_cached, window))
        return self.one_pass(sum(lengths), len(lengths), pairs, cached)

    def decode_step(self, contexts: Sequence[float], num_shared: int = 0) -> float:
        """One token each after `contexts` tokens of their own, which come after the same `num_shared` ones."""

        def num_read(window: float) -> float:
            own = [min(context, window) for context in contexts]
            return sum(own) + min(num_shared, window - min(own))

        read = self._over_layers(num_read)
        return self.one_pass(len(contexts), len(contexts), read, read)

    def _over_layers(self, of_window: Callable[[float], float]) -> float:
        """A sum over layers of what depends on how far back a layer sees."""
        return sum(of_window(math.inf if layer.window is None else layer.window) for layer in self.model.layers)

    def figures(self, sizes: Sizes) -> dict[str, Figures]:
        """The best value of each figure that has one, by case. KV counts as half grown while it grows."""
        one_stream = self.decode_step([sizes.prompt + sizes.output / 2])
        served = self.decode_step([sizes.served_prompt + sizes.served_output / 2])
        warm = self._sharing(sizes)
        return {
            "a": {"decode_tok_s": 1 / one_stream, "ttft_ms": 1000 * self.prefill([sizes.prompt])},
            "b": {"prefill_tok_s": sizes.prefill / self.prefill([sizes.prefill])},
            "c": {"output_tok_s": len(sizes.batch) * sizes.batch_output / self._batch(sizes)},
            "d": {"cold_s": self.prefill([sizes.shared]) + warm, "warm_s": warm},
            "f": {"ttft_p50_ms": 1000 * self.prefill([sizes.served_prompt]), "tpot_p50_ms": 1000 * served},
        }

    def _batch(self, sizes: Sizes) -> float:
        step = self.decode_step([length + sizes.batch_output / 2 for length in sizes.batch])
        return self.prefill(sizes.batch) + (sizes.batch_output - 1) * step

    def _sharing(self, sizes: Sizes) -> float:
        """A decode step reads the shared KV once."""
        step = self.decode_step([sizes.own + sizes.sharing_output / 2] * sizes.sharing, sizes.shared)
        return self.prefill([sizes.own] * sizes.sharing, sizes.shared) + (sizes.sharing_output - 1) * step


def num_pairs(length: int, num_cached: int, window: float) -> float:
    """Of a token and one before it, in a layer that sees `window` tokens back: `length` tokens after `num_cached`."""
    growing = min(length, max(0.0, window - num_cached))
    full = 0.0 if growing == length else (length - growing) * window
    return growing * num_cached + growing**2 / 2 + full


def fraction(value: float, best: float, higher_is_better: bool) -> float:
    """How much of the roofline is reached; 1 is all of it."""
    return value / best if higher_is_better else best / value
