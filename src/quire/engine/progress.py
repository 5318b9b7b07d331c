"""The progress line of `LLM.generate`, as users of this field know it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from quire.core.embedding import PoolingRequestOutput
from quire.core.outputs import RequestOutput


class Progress:
    """Counts finished prompts and estimates tokens per second. `enabled` may be a tqdm-like factory."""

    def __init__(self, num_prompts: int, enabled: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        if enabled:
            from tqdm import tqdm  # Loaded with the first line that is shown.

            make_bar = enabled if callable(enabled) else tqdm
            self._bar = make_bar(
                total=num_prompts,
                desc="Processed prompts",
                dynamic_ncols=True,
                postfix="est. speed input: 0.0 toks/s, output: 0.0 toks/s",
            )
        self._start = time.perf_counter()
        self._num_input_tokens = 0
        self._num_output_tokens = 0

    def finished(self, output: RequestOutput | PoolingRequestOutput) -> None:
        if self._bar is None:
            return
        self._num_input_tokens += len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            self._num_output_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        elapsed = time.perf_counter() - self._start
        self._bar.postfix = (
            f"est. speed input: {self._num_input_tokens / elapsed:.1f} toks/s,"
            f" output: {self._num_output_tokens / elapsed:.1f} toks/s"
        )
        self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
