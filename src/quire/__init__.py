"""quire: an LLM inference engine that is fast on the machine you have and written to be read.

Importing this imports no torch; the names below load what they need when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "quire.engine.llm",
    "AsyncLLM": "quire.engine.async_llm",
    "EngineConfig": "quire.config",
    "SamplingParams": "quire.core.sampling_params",
    "StructuredOutputs": "quire.core.structured_outputs",
    "PoolingParams": "quire.core.embedding",
    "BeamSearchParams": "quire.core.sampling_params",
    "OutputKind": "quire.core.sampling_params",
    "RequestOutput": "quire.core.outputs",
    "CompletionOutput": "quire.core.outputs",
    "QuireError": "quire.errors",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
