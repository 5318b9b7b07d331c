"""The ends of a recorded step (csrc/step_inputs.cpp, csrc/most_likely.cpp): from the worker's tables to what its program reads,
and from logits to the most likely tokens."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.arrays import Int64Array
from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count


class StepInputs:
    """The arrays that programs read, int64: token_ids, positions [T], query_starts [R + 1], context_lens [R], each row's last of
    the T tokens [R], and for each KV group block_tables [R, max blocks] and slots [T]. They have to stay where they are."""

    def __init__(
        self,
        token_ids: Array,
        positions: Array,
        query_starts: Array,
        context_lens: Array,
        last_tokens: Array,
        groups: Sequence[tuple[Array, Array]],
        block_size: int,
    ) -> None:
        of_tokens = [token_ids, positions, *(slots for _, slots in groups)]
        of_rows = [context_lens, last_tokens, *(block_tables for block_tables, _ in groups)]
        self._arrays = [*of_tokens, *of_rows, query_starts]
        assert all(array.dtype == DType.INT64 and array.is_contiguous() for array in self._arrays)
        self._max_tokens, self._max_rows = len(token_ids), len(context_lens)
        assert all(len(array) == self._max_tokens for array in of_tokens)
        assert all(len(array) == self._max_rows for array in of_rows)
        assert len(query_starts) == self._max_rows + 1
        self._num_groups, self._max_blocks = len(groups), groups[0][0].shape[1]
        self._native = module().StepInputs(
            token_ids=token_ids.data_ptr(),
            positions=positions.data_ptr(),
            query_starts=query_starts.data_ptr(),
            context_lens=context_lens.data_ptr(),
            last_tokens=last_tokens.data_ptr(),
            groups=[(block_tables.data_ptr(), slots.data_ptr()) for block_tables, slots in groups],
            max_blocks=self._max_blocks,
            block_size=block_size,
        )
        self._tokens: Int64Array | None = None
        self._tables: Sequence[Int64Array] = ()

    def fill(
        self, tokens: Int64Array, tables: Sequence[Int64Array], rows: list[int], starts: list[int], counts: list[int]
    ) -> None:
        """Row i computes counts[i] tokens from starts[i] on of row rows[i] of `tokens` [rows, max tokens] and `tables`, each
        [rows, max blocks].

        Their addresses are looked up when others come: that takes longer than all the rest.
        """
        assert len(rows) == len(starts) == len(counts) <= self._max_rows
        assert sum(counts) <= self._max_tokens
        if tokens is not self._tokens or tables is not self._tables:
            assert len(tables) == self._num_groups
            assert all(table.shape[1] == self._max_blocks for table in tables)
            self._native.read_from(_address(tokens), tokens.shape[1], [_address(table) for table in tables])
            self._tokens, self._tables = tokens, tables
        self._native.fill(rows, starts, counts)


def most_likely(logits: Array) -> tuple[Array, Array]:
    """The argmax of each row of contiguous float32 [L, V], int64 [L], and its logit, float32 [L]: the lowest id where several
    are equal, the first that is not a number where there is one."""
    assert logits.dtype == DType.FLOAT32
    assert logits.is_contiguous()
    num_rows, num_tokens = logits.shape
    assert num_tokens > 0
    token_ids, largest = empty_array((num_rows,), DType.INT64), empty_array((num_rows,), DType.FLOAT32)
    scratch = empty_array((num_rows * module().most_likely_scratch(num_tokens),), DType.UINT8)
    module().most_likely(
        current_program(),
        isa=current_instruction_set(),
        logits=logits.data_ptr(),
        token_ids=token_ids.data_ptr(),
        largest=largest.data_ptr(),
        scratch=scratch.data_ptr(),
        num_rows=num_rows,
        num_tokens=num_tokens,
        num_threads=thread_count(),
    )
    return token_ids, largest


def _address(array: Int64Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
