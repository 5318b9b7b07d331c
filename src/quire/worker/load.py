"""From a WorkerConfig to a model, on the thread that computes with it."""

from __future__ import annotations

import logging

from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.host.host_memory import memory_for_loading
from quire.kernels.native_module import current_instruction_set, thread_count
from quire.kernels.ops import Ops
from quire.kernels.select import select_ops
from quire.models.registry import Kind, ModelFamily, load_model
from quire.worker.step_threads import prepare_thread

logger = logging.getLogger("quire")


def load(families: dict[str, ModelFamily[Kind]], config: WorkerConfig, checkpoint: Checkpoint) -> tuple[Ops, Kind]:
    """The operators, and the model that computes with them."""
    ops = select_ops(config.backend)
    prepare_thread(ops, config)
    if config.backend == "cpu":
        # What `auto` came to: the system may keep a process from what its CPU has (tiles).
        logger.info("Native kernels: %s, %d threads.", current_instruction_set(), thread_count())
    dtype = ops.tensors.dtype(config.dtype)
    attention = select_backend(config.backend, dtype, checkpoint.config, config.kv_cache_dtype)
    with memory_for_loading():
        model = load_model(
            families, checkpoint, dtype, ops, attention, config.quantization, keep_packed=config.keep_packed
        )
    return ops, model
