"""An encoder's step as a program that is recorded once and run for any texts that it has room for (kernels/recording.py)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from quire.attention.cpu_encoder import TextBlocks, TextTables
from quire.attention.forward_batch import ForwardBatch
from quire.kernels import native_module
from quire.kernels.array import Array, int64_zeros
from quire.kernels.native_attention import TEXT_BLOCK_SIZE
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.registry import Encoder

logger = logging.getLogger("quire")

MAX_TOKENS = 512
"""With more of them Python is a small part of a step."""
MAX_TEXTS = 64


class EncodeProgram:
    """Recorded when it is first wanted."""

    def __init__(self, model: Encoder, max_model_len: int) -> None:
        self._model = model
        self._tables = TextTables.with_room(MAX_TOKENS // TEXT_BLOCK_SIZE + MAX_TEXTS, MAX_TEXTS, max_model_len)
        self._token_ids = int64_zeros(MAX_TOKENS)
        self._positions = int64_zeros(MAX_TOKENS)
        self._recorded: tuple[Recording, Array] | None = None
        self._recordable = True

    def hidden(self, texts: Sequence[Sequence[int]]) -> Array | None:
        """Hidden states [T, D], until it is called again. None for a step that has to go through Python."""
        lengths = [len(text) for text in texts]
        num_tokens = sum(lengths)
        if num_tokens > MAX_TOKENS or len(texts) > MAX_TEXTS or not self._recordable:
            return None
        try:
            recording, hidden = self._recorded = self._recorded or self._record()
        except NotRecordable as operator:
            logger.info("Every step goes through Python: %s has no native kernel.", operator)
            self._recordable = False
            return None
        self._tables.fill(lengths)
        self._token_ids.stored[:num_tokens] = np.concatenate([np.array(text, np.int64) for text in texts])
        self._positions.stored[:num_tokens] = np.concatenate([np.arange(length) for length in lengths])
        native_module.run(recording, (num_tokens, len(texts)))
        return hidden[:num_tokens]

    def _record(self) -> tuple[Recording, Array]:
        batch = ForwardBatch(
            token_ids=self._token_ids,
            positions=self._positions,
            # Nobody knows yet.
            query_starts=[*range(MAX_TEXTS), MAX_TOKENS],
            context_lens=[0] * MAX_TEXTS,
            groups=[],
            layer_groups=[],
            scratch={"cpu": TextBlocks(self._tables)},
        )
        recording = native_module.new_recording(Arena())
        with recording:
            hidden = self._model.forward(batch)
        return recording, hidden
