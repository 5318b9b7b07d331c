"""A MemoryPlan for people."""

from __future__ import annotations

import textwrap

from quire.checkpoint.model_config import ModelConfig
from quire.plan.memory import MemoryPlan
from quire.plan.sizes import format_size
from quire.plan.weights import weights_left_as_floats

COLUMNS = 80


def render_plan(name: str, model: ModelConfig, plan: MemoryPlan, dtype_reason: str | None) -> str:
    """Lines for a terminal of COLUMNS."""
    demand, need = plan.demand, plan.need
    sequences = _count(demand.concurrency, "sequence")
    lines = [
        f"{name}: {model.architecture}, {model.num_parameters() / 1e6:,.1f} M parameters, {demand.dtype}",
        *([f"  {dtype_reason}"] if dtype_reason else []),
        "",
        _row("weights", need.weights, ""),
        *_kv_rows(model, plan, sequences),
        _row("activations", need.activations, f"a step of {demand.num_step_tokens:,} tokens"),
        _row("runtime", need.runtime, "Python, quire" if demand.native else "Python, torch, quire"),
        _row("loading", need.loading, "before there are KV cache and activations"),
        _row("total", need.total, f"{'fits in' if plan.fits else 'does not fit in'} {format_size(plan.budget)}"),
        "",
        f"  longest context with {sequences}: {_limit(plan.largest_context, model)}",
        f"  most sequences of {demand.max_model_len:,} tokens{' in a step' if model.is_encoder else ''}:"
        f" {plan.largest_concurrency or 'none'}",
    ]
    for left in weights_left_as_floats(demand.quantization, model, demand.dtype):
        lines += ["", textwrap.fill(left, COLUMNS, initial_indent="  ", subsequent_indent="  ")]
    if plan.remedy is not None:
        lines += ["", f"  To make it fit, {plan.remedy}."]
    return "\n".join(lines)


def _row(name: str, num_bytes: int, note: str) -> str:
    return f"  {name:<12}{format_size(num_bytes):>10}   {note}".rstrip()


def _kv_rows(model: ModelConfig, plan: MemoryPlan, sequences: str) -> list[str]:
    if model.is_encoder:
        return [_row("KV cache", 0, "an encoder keeps none")]
    each = f"{format_size(plan.kv_bytes_per_sequence)} each"
    return [
        _row("KV cache", plan.need.kv_cache, f"{sequences} of {plan.demand.max_model_len:,} tokens, {each}"),
        _row("  a token", plan.kv_bytes_per_token, _windows(model)),
    ]


def _windows(model: ModelConfig) -> str:
    windows = [layer.window for layer in model.layers if layer.window is not None]
    return f"{len(windows)} of {model.num_layers} layers keep only the last {max(windows):,}" if windows else ""


def _limit(context: int, model: ModelConfig) -> str:
    if context == 0:
        return "none"
    if context < model.max_position:
        return f"{context:,} tokens"
    unasked = (
        "" if model.default_context == context else f"; {model.default_context:,} unless max_model_len asks for more"
    )
    return f"{context:,} tokens (the model's own limit{unasked})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
