"""Rotary embeddings as config.json describes them.

Two spellings exist: `rope_parameters` (transformers 5), and `rope_theta` with `rope_scaling` (before).
"""

from __future__ import annotations

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.model_config import LinearRopeScaling, Llama3RopeScaling, RopeConfig, RopeScaling

DEFAULT_THETA = 10_000.0


def read_rope(fields: ConfigFields, *, head_dim: int, max_position: int) -> RopeConfig:
    """The one rotary embedding that all layers use."""
    parameters = fields.section("rope_parameters")
    # The older spelling wins where a file has both, and over either the field outside of them, as in transformers.
    scaling = fields.section("rope_scaling") or parameters
    original = fields.optional_integer("original_max_position_embeddings")
    theta = None
    for section in (scaling, parameters, fields):
        if theta is None and section is not None:
            theta = section.optional_number("rope_theta")
    return RopeConfig(
        theta=theta or DEFAULT_THETA,
        rotary_dim=head_dim,
        scaling=None if scaling is None else read_rope_scaling(scaling, max_position, original),
    )


def read_rope_scaling(
    fields: ConfigFields, max_position: int, original_max_position: int | None = None
) -> RopeScaling | None:
    """`fields` are those of rope_scaling, or of rope_parameters (of one layer type); `original_max_position`, if it is
    known, wins over theirs."""
    fields.must_be("partial_rotary_factor", 1.0)
    name = "type" if fields.text("rope_type") is None else "rope_type"
    kind = fields.choice(name, {"default": "default", "linear": "linear", "llama3": "llama3"}, "default")
    if kind == "linear":
        return LinearRopeScaling(factor=fields.number("factor"))
    if kind == "llama3":
        scaling = Llama3RopeScaling(
            factor=fields.number("factor"),
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
            original_max_position=original_max_position
            or fields.integer("original_max_position_embeddings", max_position),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise fields.damaged("high_freq_factor", f"above low_freq_factor, which is {scaling.low_freq_factor}")
        return scaling
    return None
