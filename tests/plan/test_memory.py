"""The planner's arithmetic: KV bytes counted by hand, largest values that are truly largest, remedies that suffice."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.checkpoint.model_config import ModelConfig
from quire.plan.memory import Demand, memory_need, plan_memory

MIB, GIB = 2**20, 2**30


def test_kv_of_grouped_query_attention(smollm2_config: ModelConfig) -> None:
    plan = plan_memory(smollm2_config, Demand(dtype="bfloat16", max_model_len=4096), 8 * GIB)
    assert plan.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2  # layers, K and V, KV heads, head_dim, bytes
    assert plan.kv_bytes_per_sequence == 4096 * plan.kv_bytes_per_token


def test_sliding_layers_stop_growing_at_their_window(gemma_config: ModelConfig) -> None:
    def kv_bytes(num_tokens: int) -> int:
        plan = plan_memory(gemma_config, Demand(dtype="bfloat16", max_model_len=num_tokens), 8 * GIB)
        return plan.kv_bytes_per_sequence

    per_token_and_layer = 2 * 1 * 256 * 2
    assert kv_bytes(512) == 18 * 512 * per_token_and_layer
    assert kv_bytes(32768) - kv_bytes(16384) == 3 * 16384 * per_token_and_layer
    window = 512 + 16  # a block is partly outside the window
    assert kv_bytes(32768) == (3 * 32768 + 15 * window) * per_token_and_layer


def test_the_dtype_scales_weights_and_kv(smollm2_config: ModelConfig) -> None:
    single = memory_need(smollm2_config, Demand(dtype="float32", max_model_len=1024))
    half = memory_need(smollm2_config, Demand(dtype="bfloat16", max_model_len=1024))
    assert single.weights == 2 * half.weights == 4 * smollm2_config.num_parameters()
    assert single.kv_cache == 2 * half.kv_cache


def test_a_prompt_that_may_not_be_cut_sizes_the_step(smollm2_config: ModelConfig) -> None:
    cut = Demand(dtype="bfloat16", max_model_len=8192, max_num_batched_tokens=512, max_num_seqs=1)
    whole = replace(cut, enable_chunked_prefill=False)
    assert memory_need(smollm2_config, whole).activations > memory_need(smollm2_config, cut).activations


def test_tokenizers_of_large_vocabularies_take_memory(smollm2_config: ModelConfig) -> None:
    demand = Demand(dtype="bfloat16", max_model_len=1024)
    large = memory_need(replace(smollm2_config, vocab_size=2 * smollm2_config.vocab_size), demand)
    small = memory_need(smollm2_config, demand)
    assert large.runtime > small.runtime + smollm2_config.vocab_size
    assert large.loading == 2 * small.loading


def test_what_takes_all_of_the_budget_fits(smollm2_config: ModelConfig) -> None:
    demand = Demand(dtype="bfloat16", max_model_len=1024)
    total = memory_need(smollm2_config, demand).total
    exact, one_less = (plan_memory(smollm2_config, demand, budget) for budget in (total, total - 1))
    assert exact.fits
    assert exact.remedy is None
    assert not one_less.fits


demands = st.builds(
    Demand,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    max_model_len=st.integers(1, 8192),
    concurrency=st.integers(1, 64),
    max_num_seqs=st.integers(1, 64),
    block_size=st.sampled_from([1, 16, 64]),
    max_num_batched_tokens=st.sampled_from([16, 512, 4096]),
    enable_chunked_prefill=st.booleans(),
)
budgets = st.integers(16 * MIB, 16 * GIB)
fixture_is_constant = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@fixture_is_constant
@given(demand=demands, budget=budgets)
def test_the_largest_fits_and_one_more_does_not(gemma_config: ModelConfig, demand: Demand, budget: int) -> None:
    plan = plan_memory(gemma_config, demand, budget)

    def fits(**change: int) -> bool:
        return memory_need(gemma_config, replace(demand, **change)).total <= budget

    context, concurrency = plan.largest_context, plan.largest_concurrency
    if context:
        assert fits(max_model_len=context)
    if context < gemma_config.max_position:
        assert not fits(max_model_len=context + 1)
    if concurrency:
        assert fits(concurrency=concurrency, max_num_seqs=max(concurrency, demand.max_num_seqs))
    more = concurrency + 1
    assert not fits(concurrency=more, max_num_seqs=max(more, demand.max_num_seqs))


@fixture_is_constant
@given(demand=demands, budget=budgets)
def test_the_remedy_suffices_alone(gemma_config: ModelConfig, demand: Demand, budget: int) -> None:
    plan = plan_memory(gemma_config, demand, budget)
    assert (plan.remedy is None) == plan.fits
    if plan.remedy is None:
        return
    if found := re.match(r"lower the concurrency \(max_num_seqs\) from (\d+) to (\d+)", plan.remedy):
        n = int(found[2])

        def with_fewer(n: int) -> Demand:
            return replace(demand, concurrency=min(n, demand.concurrency), max_num_seqs=min(n, demand.max_num_seqs))

        changed = with_fewer(n)
        assert int(found[1]) == max(demand.concurrency, demand.max_num_seqs)
        assert memory_need(gemma_config, with_fewer(n + 1)).total > budget
    elif found := re.match(r"lower max_model_len from \d+ to (\d+)", plan.remedy):
        changed = replace(demand, max_model_len=int(found[1]))
    elif "bfloat16" in plan.remedy:
        changed = replace(demand, dtype="bfloat16")
    else:
        assert "more memory" in plan.remedy
        return
    assert memory_need(gemma_config, changed).total <= budget


def remedy(model: ModelConfig, budget: int, **demand: object) -> str:
    found = plan_memory(model, Demand(**{"dtype": "float32", "max_num_seqs": 1, **demand}), budget).remedy  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_least_intrusive_remedy_is_proposed(smollm2_config: ModelConfig) -> None:
    """Fewer at once, then a little shorter, then 16 bits, then much shorter, then more memory."""
    need = memory_need(smollm2_config, Demand(dtype="float32", max_model_len=8192, max_num_seqs=1))
    fixed = need.total - need.kv_cache
    assert remedy(smollm2_config, need.total, max_model_len=8192, concurrency=2).startswith("lower the concurrency")
    assert remedy(smollm2_config, fixed + need.kv_cache * 3 // 4, max_model_len=8192).startswith("lower max_model_len")
    assert "bfloat16" in remedy(smollm2_config, fixed + need.kv_cache // 4, max_model_len=8192)
    half = memory_need(smollm2_config, Demand(dtype="bfloat16", max_model_len=8192, max_num_seqs=1))
    quarter_context = half.total - half.kv_cache * 3 // 4
    much = remedy(smollm2_config, quarter_context, max_model_len=8192, dtype="bfloat16")
    assert much.startswith("lower max_model_len")
    assert "more memory" in remedy(smollm2_config, need.weights // 4, max_model_len=8192)
