"""Groups, block sizes and block counts: the arithmetic both towers and the planner rely on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.kv_layout import KVSpec, bytes_per_block, group_layers, make_kv_cache_config, num_blocks_per_sequence

FULL = KVSpec(num_kv_heads=1, head_dim=256)
SLIDING = KVSpec(num_kv_heads=1, head_dim=256, window=512)


def test_uniform_layers_make_one_group() -> None:
    (group,) = group_layers([FULL] * 30)
    assert group.layers == tuple(range(30))


def test_gemma_pattern_makes_six_groups_of_three() -> None:
    specs: list[KVSpec] = [FULL if layer % 6 == 5 else SLIDING for layer in range(18)]
    groups = group_layers(specs)
    assert [len(group.layers) for group in groups] == [3] * 6
    assert [group.layers for group in groups if group.spec == FULL] == [(5, 11, 17)]


def test_gemma_keeps_a_fraction_of_the_kv_of_full_attention() -> None:
    """15 of 18 layers slide: at 8,192 tokens a sequence holds under a third of what full attention would."""
    specs: list[KVSpec] = [FULL if layer % 6 == 5 else SLIDING for layer in range(18)]
    sliding, full = group_layers(specs), group_layers([FULL] * 18)
    held = num_blocks_per_sequence(sliding, 16, 8192) * bytes_per_block(sliding, 16, "bfloat16")
    everything = num_blocks_per_sequence(full, 16, 8192) * bytes_per_block(full, 16, "bfloat16")
    assert held / everything == pytest.approx(1 / 6 + 5 / 6 * 33 / 512, abs=0.01)


@given(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=64))
def test_every_layer_is_in_one_group_and_little_is_wasted(specs: list[KVSpec]) -> None:
    groups = group_layers(specs)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(specs)))
    assert all(specs[layer] == group.spec for group in groups for layer in group.layers)
    slots = max(len(group.layers) for group in groups) * len(groups)
    assert slots <= 1.1 * len(specs)


@given(st.integers(1, 3000), st.integers(1, 64), st.integers(1, 512))
def test_blocks_per_sequence_bound_what_a_window_holds(num_tokens: int, block_size: int, chunk: int) -> None:
    """Whatever chunk is being computed, the blocks it touches and the window before it fit the bound."""
    bound = num_blocks_per_sequence(group_layers([SLIDING]), block_size, num_tokens, chunk)
    for end in range(chunk, num_tokens + 1, max(1, chunk)):
        start = end - chunk
        first = max(0, start - 511) // block_size
        assert -(-end // block_size) - first <= bound


def test_block_bytes() -> None:
    config = make_kv_cache_config([FULL] * 18, block_size=16, dtype="bfloat16", num_blocks=10)
    assert config.bytes_per_block == 2 * 18 * 16 * 256 * 2
    codes = make_kv_cache_config([FULL] * 18, block_size=16, dtype="int8", num_blocks=10)
    assert codes.bytes_per_block == 2 * 18 * 16 * (256 + 2)
