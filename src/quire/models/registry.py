"""From a checkpoint to a model: the families, and what sets their checkpoints apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from quire.attention.backend import AttentionBackend, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.checkpoint.checkpoint import Checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.models import gemma3, gpt2, llama, mistral, opt, qwen2, qwen3
from quire.models.loader import WeightLoader
from quire.models.parts import ModelParts
from quire.quantization.kept import kept_weights
from quire.quantization.method import QuantMethod
from quire.quantization.select import select_method, select_packed_method


class Model(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch, kv: list[LayerKVCache]) -> Any:
        """Hidden states [L, D] of the last layer's queries; writes the step's K and V into `kv`, one cache a layer."""

    def prepare(self, longest: int) -> None:
        """Make all tables for positions below `longest`: they stay where they are from then on."""

    def logits(self, hidden: Any) -> Any:
        """[L, D] -> float32 [L, V]."""

    @property
    def needs_logits(self) -> bool:
        """Whether the most likely tokens can only be told from all logits."""

    def most_likely(self, hidden: Any) -> tuple[Any, Any]:
        """The argmax of each row of logits, int64 [L], and its logit, float32 [L]; not where it `needs_logits`."""

    def prepare_search(self) -> bool:
        """Whether `search_for` can be called; where it will be later, some part of what it needs is made."""

    def search_for(self, hidden: Any) -> tuple[Any, Any]:
        """What `most_likely` says, and few logits are computed."""


class Encoder(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch) -> Any:
        """Hidden states [T, D] of whole texts."""


Kind = TypeVar("Kind", Model, Encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily(Generic[Kind]):
    """`prefix`: what names lack in checkpoints of the model without its output projection.
    `transposed`: linear weights are stored inputs first. `norm_offset` is added to norm weights.
    """

    build: Callable[[ModelParts], Kind]
    prefix: str = "model."
    transposed: bool = False
    norm_offset: float = 0.0


FAMILIES: dict[str, ModelFamily[Model]] = {
    "llama": ModelFamily(build=llama.build),
    "mistral": ModelFamily(build=mistral.build),
    "qwen2": ModelFamily(build=qwen2.build),
    "qwen3": ModelFamily(build=qwen3.build),
    "gemma3": ModelFamily(build=gemma3.build, norm_offset=1.0),
    "opt": ModelFamily(build=opt.build),
    "gpt2": ModelFamily(build=gpt2.build, prefix="transformer.", transposed=True),
}
"""By ModelConfig.family."""


def load_model(
    checkpoint: Checkpoint,
    dtype: Any,
    ops: Ops,
    attention: AttentionBackend,
    quantization: Quantization = "none",
    *,
    keep_packed: bool = False,
) -> Model:
    """A decoder. Raises CheckpointError where files and config do not fit together."""
    family = FAMILIES[checkpoint.config.family]
    return load_family(family, checkpoint, dtype, ops, attention, quantization, keep_packed=keep_packed)


def load_family(
    family: ModelFamily[Kind],
    checkpoint: Checkpoint,
    dtype: Any,
    ops: Ops,
    attention: AttentionBackend,
    quantization: Quantization,
    *,
    keep_packed: bool,
) -> Kind:
    """`keep_packed`: linear weights come from quire's cache where they are there, and go there where they are not."""
    weights: AbstractContextManager[QuantMethod] = nullcontext(select_method(ops, dtype, quantization))
    if keep_packed:
        weights = kept_weights(select_packed_method(quantization), checkpoint, dtype, quantization)
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
