"""What the weights take: of those that are kept in few bits, and of those that stay floats all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from quire.checkpoint.model_config import ModelConfig, WeightShape
from quire.core.kv_layout import BYTES_PER_ELEMENT
from quire.core.quantization import LARGEST_GROUP, ROUNDINGS, SMALLEST_GROUP, TABLE_ROUNDING, Quantization
from quire.plan.sizes import format_size


def weight_bytes(model: ModelConfig, quantization: Quantization, dtype: str) -> int:
    """Of all, norms and biases included."""
    size = BYTES_PER_ELEMENT[dtype]
    if quantization == "stored" and model.quantized_bytes is not None:
        return model.quantized_bytes + model.num_float_values * size
    total: float = model.num_parameters() * size
    for shape, count in model.weight_shapes().items():
        rounded = _rounded_bytes_per_value(quantization, shape)
        if rounded is not None:
            total -= count * shape.num_values * (size - rounded)
    return round(total)


def unrounded_weights(model: ModelConfig, quantization: Quantization) -> Counter[WeightShape]:
    """Those that are to be rounded and cannot be; none where nothing is."""
    if quantization not in ROUNDINGS:
        return Counter()
    shapes = model.weight_shapes().items()
    return Counter({shape: count for shape, count in shapes if _rounded_bytes_per_value(quantization, shape) is None})


def weights_left_as_floats(quantization: Quantization, model: ModelConfig, dtype: str) -> list[str]:
    """Of a model whose weights are otherwise kept in few bits, a line for each kind that is not."""
    if quantization == "stored":
        return [
            f"Tensors of type {stored.type_name} have no kernel for few bits and become {dtype}: {stored.num_tensors}"
            f" of them, {format_size(stored.num_values * BYTES_PER_ELEMENT[dtype] - stored.num_bytes)} more."
            for stored in model.codeless
        ]
    if quantization not in ROUNDINGS:
        return []
    left, shapes = unrounded_weights(model, quantization), model.weight_shapes()
    smaller = _smaller_groups(quantization, _inputs(shapes))
    if not left:
        return smaller
    return [
        f"{left.total()} of {shapes.total()} weights stay {dtype} with quantization {quantization}: their inputs"
        f" ({', '.join(map(str, _inputs(left)))}) are no multiple of {SMALLEST_GROUP}.",
        *smaller,
    ]


def _rounded_bytes_per_value(quantization: Quantization, shape: WeightShape) -> float | None:
    """None where it is not rounded."""
    if quantization not in ROUNDINGS:
        return None
    rounding = TABLE_ROUNDING if shape.is_table else ROUNDINGS[quantization]
    return rounding.bytes_per_weight(shape.num_inputs)


def _inputs(shapes: Iterable[WeightShape]) -> list[int]:
    return sorted({shape.num_inputs for shape in shapes})


def _smaller_groups(quantization: str, counts: list[int]) -> list[str]:
    """A line where rows of so many inputs are no whole groups of the size that was asked for."""
    rounding = ROUNDINGS[quantization]
    found = {num_inputs: rounding.group_of(num_inputs) for num_inputs in counts}
    smaller = [
        f"of {size} for {num_inputs}"
        for num_inputs, size in found.items()
        if size is not None and size < rounding.group_size < LARGEST_GROUP
    ]
    if not smaller:
        return []
    return [f"quantization {quantization}: rows of inputs are whole groups, so groups are {', '.join(smaller)}."]
