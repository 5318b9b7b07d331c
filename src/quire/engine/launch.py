"""From an EngineConfig to a running engine: read the checkpoint, resolve every choice, load, size the KV cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from quire.cache.kv_cache_manager import KVCacheManager
from quire.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quire.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.engine.encode_engine import EncodeEngine
from quire.engine.engine import Engine
from quire.engine.engine_client import EngineClient
from quire.engine.input_processor import InputProcessor
from quire.engine.tokenizer import Tokenizer
from quire.host.host_memory import give_back_freed_memory
from quire.plan.machine import read_machine
from quire.plan.resolve import resolve
from quire.plan.resolved_config import ResolvedConfig
from quire.scheduler.encode_scheduler import EncodeScheduler
from quire.scheduler.scheduler import Scheduler
from quire.worker.executor import make_encode_executor, make_executor

logger = logging.getLogger("quire")


@dataclass(frozen=True, slots=True)
class LaunchedEngine:
    """What a face needs: the way in, the engine's client, and what was decided on the way."""

    tokenizer: Tokenizer
    config: ResolvedConfig
    inputs: InputProcessor
    client: EngineClient

    @property
    def info(self) -> EngineInfo:
        worker, scheduler, kv_cache = self.config.worker, self.config.scheduler, self.config.kv_cache
        return EngineInfo(
            model=worker.model,
            task=self.config.task,
            dtype=worker.dtype,
            backend=worker.backend,
            num_threads=worker.num_threads,
            max_model_len=worker.max_model_len,
            block_size=kv_cache.block_size,
            num_blocks=kv_cache.num_blocks,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            scheduling_policy=scheduler.policy,
            enable_prefix_caching=self.config.enable_prefix_caching,
            max_concurrency=self.config.max_concurrency,
        )

    def shutdown(self) -> None:
        self.inputs.close()
        self.client.engine.shutdown()


def launch(
    config: EngineConfig, executor_name: str = "uniproc", on_files_ready: Callable[[], None] = lambda: None
) -> LaunchedEngine:
    """Calls `on_files_ready` once the model's files are on this machine and can be read.

    Raises as `LLM` does, before anything is kept.
    """
    _log_to_stderr_unless_configured()
    checkpoint = open_checkpoint(config.model)
    on_files_ready()
    resolved = resolve(config, checkpoint.config, read_machine())
    for line in (*checkpoint.notes, *resolved.reasons):
        logger.info("%s", line)
    logger.info("%s", resolved.kv_cache_line)
    # The tokenizer is read while the weights are loaded, most of which needs no interpreter.
    with ThreadPoolExecutor(1, "quire-tokenizer") as beside:
        reading = beside.submit(lambda: Tokenizer(checkpoint.tokenizer))
        engine = _make_engine(executor_name, resolved, checkpoint)
        try:
            tokenizer = reading.result()
        except BaseException:
            engine.shutdown()
            raise
    give_back_freed_memory()
    return LaunchedEngine(
        tokenizer=tokenizer,
        config=resolved,
        inputs=InputProcessor(tokenizer, checkpoint.config, resolved.worker.max_model_len, config.seed),
        client=EngineClient(engine, tokenizer),
    )


def _log_to_stderr_unless_configured() -> None:
    """A program that set up logging keeps its own; otherwise people should see what was decided for them."""
    if not logger.hasHandlers() and logger.level == logging.NOTSET:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _make_engine(executor_name: str, resolved: ResolvedConfig, checkpoint: Checkpoint) -> Engine | EncodeEngine:
    worker = resolved.worker
    kv = KVCacheManager(
        resolved.kv_cache,
        model_identity=f"{checkpoint.identity}/{worker.dtype}/{worker.quantization}/{worker.kv_cache_dtype}",
        enable_prefix_caching=resolved.enable_prefix_caching,
        eviction_policy=resolved.eviction_policy,
    )
    if resolved.task == "embed":
        encoder = make_encode_executor(executor_name, worker, checkpoint)
        return EncodeEngine(EncodeScheduler(resolved.scheduler, kv), encoder, resolved.num_steps_in_flight)
    executor = make_executor(executor_name, worker, checkpoint)
    executor.allocate_kv_cache(resolved.kv_cache)
    return Engine(Scheduler(resolved.scheduler, kv), executor, resolved.num_steps_in_flight)
