"""Why every accepted sequence finishes: it fits alone, and after a few preemptions it is not disturbed again."""

from __future__ import annotations

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.sequence import Sequence
from quire.errors import InvalidRequestError
from quire.scheduler.policies import Policy

MAX_PREEMPTIONS = 3
"""A sequence preempted so often is protected."""


def is_protected(sequence: Sequence) -> bool:
    return sequence.num_preemptions >= MAX_PREEMPTIONS


class Guarantees:
    """Counts blocks at their worst: as if nothing were shared."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, policy: Policy) -> None:
        self._config = config
        self._kv = kv
        self._place = policy.place
        self._num_blocks = kv.pool.num_blocks

    def check_fits(self, num_prompt_tokens: int, max_num_tokens: int) -> None:
        """Raise InvalidRequestError if such a sequence could not finish even with the whole cache to itself.

        The last token's KV is never written, so max_num_tokens - 1 tokens need room.
        """
        num_output_tokens = max_num_tokens - num_prompt_tokens
        if num_prompt_tokens < 1 or num_output_tokens < 1 or max_num_tokens > self._config.max_model_len:
            raise InvalidRequestError(
                f"A prompt of {num_prompt_tokens} tokens with up to {num_output_tokens} tokens of output cannot run:"
                f" each needs at least 1, and together at most max_model_len ({self._config.max_model_len}).",
                field="max_tokens",
                value=num_output_tokens,
            )
        smallest_chunk = 1 if self._config.enable_chunked_prefill else max_num_tokens - 1
        needed = self._kv.num_blocks_at_most(max_num_tokens - 1, smallest_chunk)
        if needed > self._num_blocks:
            raise InvalidRequestError(
                f"A prompt of {num_prompt_tokens} tokens with up to {num_output_tokens} tokens of output needs {needed} KV"
                f" blocks of {self._kv.config.block_size} tokens, and there are {self._num_blocks}: lower max_tokens,"
                " shorten the prompt, or raise num_blocks or memory_utilization.",
                field="max_tokens",
                value=num_output_tokens,
            )

    def can_join(self, running: list[Sequence], newcomer: Sequence) -> bool:
        """Whether every protected sequence keeps enough blocks to finish, with all that come before it in order.

        Those after it give way, so only these count. Hence nobody is preempted more than MAX_PREEMPTIONS times,
        and the first in order always runs.
        """
        joined = [*running, newcomer]
        protected = [self._place(sequence) for sequence in joined if is_protected(sequence)]
        if not protected:
            return True
        last = max(protected)
        return sum(self._most_blocks(s) for s in joined if self._place(s) <= last) <= self._num_blocks

    def _most_blocks(self, sequence: Sequence) -> int:
        """Alone, a sequence makes do with the blocks there are, in smaller chunks."""
        chunked = self._config.enable_chunked_prefill
        largest_chunk = self._config.max_num_batched_tokens if chunked else sequence.max_num_tokens
        return min(self._kv.num_blocks_at_most(sequence.max_num_tokens - 1, largest_chunk), self._num_blocks)
