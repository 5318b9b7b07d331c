"""Persistent rows: stale blocks are never seen, rows are recycled, tokens grow in place."""

from __future__ import annotations

from quire.core.kv_layout import KVSpec, make_kv_cache_config
from quire.core.sampling_params import SamplingParams
from quire.core.step import NewRow
from quire.worker.row_table import RowTable

CONFIG = make_kv_cache_config([KVSpec(1, 8)], block_size=4, dtype="float32", num_blocks=50)


def new_row(seq_id: int, tokens: list[int], blocks: list[int]) -> NewRow:
    return NewRow(seq_id, tokens, len(tokens), SamplingParams(), [], 0, [blocks])


def test_tables_and_tokens_grow() -> None:
    table = RowTable(CONFIG, 2, 16)
    table.add(new_row(7, [1, 2, 3, 4], [9]))
    row = table.rows[7]
    table.append_token(row, 5)
    table.append_blocks(row, [[11, 12]])
    assert table.tokens[row.table_row, :5].tolist() == [1, 2, 3, 4, 5]
    assert table.tables[0][row.table_row].tolist() == [9, 11, 12, 0]
    assert row.sampling.token_ids == [1, 2, 3, 4, 5]


def test_a_recycled_row_holds_nothing_of_the_last_one() -> None:
    table = RowTable(CONFIG, 1, 16)
    table.add(new_row(1, [1] * 12, [4, 5, 6]))
    table.release(1)
    table.release(1)
    table.add(new_row(2, [2], [8]))
    assert table.tables[0][table.rows[2].table_row].tolist() == [8, 0, 0, 0]


def test_more_rows_than_expected_still_have_a_place() -> None:
    table = RowTable(CONFIG, 1, 16)
    for seq_id in range(5):
        table.add(new_row(seq_id, [seq_id], [seq_id + 1]))
    assert len({row.table_row for row in table.rows.values()}) == 5
    assert all(table.tables[0][row.table_row, 0] == seq_id + 1 for seq_id, row in table.rows.items())
    for seq_id, row in table.rows.items():
        table.append_token(row, 10 + seq_id)
    assert [table.tokens[row.table_row, :2].tolist() for row in table.rows.values()] == [[i, 10 + i] for i in range(5)]


def test_the_token_after_the_context_is_known_but_not_stored() -> None:
    table = RowTable(CONFIG, 1, 4)
    table.add(new_row(1, [1, 2, 3], [1]))
    for token_id in (4, 5):
        table.append_token(table.rows[1], token_id)
    assert table.rows[1].token_ids == [1, 2, 3, 4, 5]
    assert table.tokens[table.rows[1].table_row].tolist() == [1, 2, 3, 4]
