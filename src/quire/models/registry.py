"""From a checkpoint to a model: the families, and what sets their checkpoints apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from quire.attention.backend import AttentionBackend
from quire.attention.forward_batch import ForwardBatch
from quire.checkpoint.checkpoint import Checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.models import bert, gemma3, gpt2, llama, mistral, opt, qwen2, qwen3
from quire.models.decoder import Decoder
from quire.models.loader import WeightLoader
from quire.models.parts import ModelParts
from quire.quantization.kept import kept_weights
from quire.quantization.method import QuantMethod
from quire.quantization.select import select_method, select_packed_method


class Encoder(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch) -> Any:
        """Hidden states [T, D] of whole texts."""


Kind = TypeVar("Kind", Decoder, Encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily(Generic[Kind]):
    """`prefix`: what names lack in checkpoints of the model without its output projection.
    `transposed`: linear weights are stored inputs first. `norm_offset` is added to norm weights.
    """

    build: Callable[[ModelParts], Kind]
    prefix: str = "model."
    transposed: bool = False
    norm_offset: float = 0.0


DECODERS: dict[str, ModelFamily[Decoder]] = {
    "llama": ModelFamily(build=llama.build),
    "mistral": ModelFamily(build=mistral.build),
    "qwen2": ModelFamily(build=qwen2.build),
    "qwen3": ModelFamily(build=qwen3.build),
    "gemma3": ModelFamily(build=gemma3.build, norm_offset=1.0),
    "opt": ModelFamily(build=opt.build),
    "gpt2": ModelFamily(build=gpt2.build, prefix="transformer.", transposed=True),
}
"""By ModelConfig.family, as those below."""
ENCODERS: dict[str, ModelFamily[Encoder]] = {
    "bert": ModelFamily(build=bert.build, prefix="bert."),
}


def load_model(
    families: dict[str, ModelFamily[Kind]],
    checkpoint: Checkpoint,
    dtype: Any,
    ops: Ops,
    attention: AttentionBackend,
    quantization: Quantization = "none",
    *,
    keep_packed: bool = False,
) -> Kind:
    """`keep_packed`: linear weights come from quire's cache where they are there, and go there where they are not.

    Raises CheckpointError where files and config do not fit together.
    """
    family = families[checkpoint.config.family]
    weights: AbstractContextManager[QuantMethod] = (
        kept_weights(select_packed_method(quantization), checkpoint, dtype, quantization)
        if keep_packed
        else nullcontext(select_method(ops, dtype, quantization))
    )
    with closing(checkpoint.open_weights()) as source, weights as method:
        loader = WeightLoader(source, checkpoint.name, ops.tensors, dtype, family.prefix)
        parts = ModelParts(
            checkpoint.config,
            loader,
            ops,
            attention,
            method,
            transposed=family.transposed,
            norm_offset=family.norm_offset,
        )
        model = family.build(parts)
        loader.finish()
    return model
