"""Naming blocks by content, and searching for the longest prefix that all groups can continue."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.prefix_cache import PrefixCache, extend_hash_chain, root_hash
from quire.cache.prefix_search import PrefixSearch
from quire.core.kv_layout import NULL_BLOCK


def chain(token_ids: list[int], root: bytes = b"", block_size: int = 4) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hash_chain(hashes, root, token_ids, block_size, len(token_ids) // block_size)
    return hashes


def test_cve_2025_25183_roots_differ_by_model_and_by_salt() -> None:
    pairs = [("m", None), ("m", ""), ("m", "a"), ("m", "b"), ("ma", None), ("ma", ""), ("", "m"), ("m", "\ud800")]
    assert len({root_hash(*pair) for pair in pairs}) == len(pairs)


def test_cve_2025_25183_a_block_is_named_by_everything_before_it() -> None:
    names = [chain(tokens)[-1] for tokens in ([1, 2, 3, 4] * 2, [1, 2, 3, 5, 1, 2, 3, 4], [1, 2, 3, 4])]
    assert len(set(names)) == 3
    assert chain([1, 2, 3, 4, 5, 6, 7, 8], b"one")[0] != chain([1, 2, 3, 4], b"two")[0]
    assert chain([1, 256, 0, 0]) != chain([257, 0, 0, 0])


def test_a_chain_grown_in_pieces_is_the_same() -> None:
    tokens = list(range(40))
    pieces: list[bytes] = []
    for num_blocks in (0, 1, 1, 4, 10):
        extend_hash_chain(pieces, b"r", tokens, 4, num_blocks)
    assert pieces == chain(tokens, b"r")


def test_the_first_of_two_equal_blocks_stays() -> None:
    prefix_cache = PrefixCache(num_groups=2)
    prefix_cache.insert(0, b"content", 1)
    prefix_cache.insert(0, b"content", 2)
    prefix_cache.insert(1, b"content", 3)
    assert (prefix_cache.blocks(0), prefix_cache.blocks(1)) == ({b"content": 1}, {b"content": 3})
    assert 2 not in prefix_cache


@given(
    windows=st.lists(st.sampled_from([None, 1, 2, 4, 5, 9, 16]), min_size=1, max_size=3),
    block_size=st.integers(1, 4),
    missing=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=8),
    num_blocks=st.integers(0, 8),
)
def test_search_finds_the_longest_prefix_by_definition(windows, block_size, missing, num_blocks) -> None:
    contents = [bytes([index]) for index in range(8)]
    prefix_cache = PrefixCache(len(windows))
    numbers = itertools.count(1)
    for group, index in itertools.product(range(len(windows)), range(8)):
        if (group, index) not in missing:
            prefix_cache.insert(group, contents[index], next(numbers))

    def reaches(group: int, position: int) -> set[int]:
        """The blocks that the token at `position` attends to, itself left out."""
        first = 0 if windows[group] is None else max(0, position - windows[group] + 1)
        return {p // block_size for p in range(first, position)}

    def usable(length: int) -> bool:
        needed = {(g, index) for g in range(len(windows)) for index in reaches(g, length * block_size)}
        return not needed & missing

    hit = PrefixSearch(prefix_cache, windows, block_size).longest(contents, num_blocks)
    length = max(length for length in range(num_blocks + 1) if usable(length))
    assert hit.num_tokens == length * block_size
    for group, table in enumerate(hit.tables):
        blocks = prefix_cache.blocks(group)
        needed = reaches(group, length * block_size)
        assert table == [blocks[contents[i]] if i in needed else NULL_BLOCK for i in range(length)]
