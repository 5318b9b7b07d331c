"""The rules single sampling fields keep. A rule takes a field's name and value and returns the value in its stored form.

Whatever breaks a rule raises InvalidRequestError: the field, its value, the rule and the remedy in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import msgspec

from quire.errors import InvalidRequestError

Rule = Callable[[str, Any], Any]

MAX_WIRE_INT = 2**63 - 1
"""The largest signed integer of 64 bits: what a message between processes carries."""
MAX_LOGIT_BIAS = 100.0
_MAX_SHOWN_CHARACTERS = 80


def refuse(field: str, value: object, rule: str, remedy: str) -> NoReturn:
    """Raise the error every broken rule ends in."""
    raise InvalidRequestError(f"{field} is {shown(value)}, but {rule}; {remedy}.", field=field, value=value)


def shown(value: object) -> str:
    """The value as an error message shows it: short, whatever a caller passed."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits.
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."


def whole_number(
    low: int, high: int = MAX_WIRE_INT, *, remedy: str, aliases: Mapping[int, int | None] | None = None
) -> Rule:
    """An int of [low, high]; `aliases` maps other ints that users write (such as -1) to what they mean."""
    limits = f"of at least {low}" if high == MAX_WIRE_INT else f"from {low} to {high}"

    def rule(field: str, value: Any) -> int | None:
        number = _as_int(value)
        if aliases and number is not None and number in aliases:
            return aliases[number]
        if number is None or not low <= number <= high:
            refuse(field, value, f"it must be a whole number {limits}", remedy)
        return number

    return rule


def real_number(low: float, high: float, *, remedy: str, above_low: bool = False) -> Rule:
    """A finite float of [low, high], or (low, high] with `above_low`; stored as a float."""
    if math.isinf(high):
        limits = f"be a finite number {'above' if above_low else 'of at least'} {low:g}"
    elif low == high:
        limits = f"be {low:g}"
    else:
        limits = f"be a number in {'(' if above_low else '['}{low:g}, {high:g}]"

    def rule(field: str, value: Any) -> float:
        number = _as_float(value)
        if number is None or not low <= number <= high or (above_low and number == low):
            refuse(field, value, f"it must {limits}", remedy)
        return number

    return rule


def optional(rule: Rule) -> Rule:
    """None, or what `rule` admits."""
    return lambda field, value: None if value is None else rule(field, value)


def true_or_false(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        refuse(field, value, "it must be True or False", "pass a bool")
    return value


def one_of(*choices: object) -> Rule:
    def rule(field: str, value: Any) -> Any:
        # Values of other types are not compared: an array's == gives an array, which is neither true nor false.
        if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
            refuse(field, value, f"it must be one of {', '.join(map(str, choices))}", "pass one of them")
        return value

    return rule


def strings(remedy: str) -> Rule:
    """None, a string, or a list or tuple of non-empty strings; stored as a tuple."""

    def rule(field: str, value: Any) -> tuple[str, ...]:
        items = (value,) if isinstance(value, str) else _as_tuple(field, value, "strings", remedy)
        for item in items:
            if not isinstance(item, str) or not item:
                refuse(field, value, f"{shown(item)} in it is not a non-empty string", remedy)
        return items

    return rule


def token_ids(field: str, value: Any, remedy: str = "pass a list of token ids") -> tuple[int, ...]:
    """None, or a list or tuple of token ids; stored as a tuple. The vocabulary's end is checked where it is known."""
    ids = _as_tuple(field, value, "token ids", remedy)
    # All at once first: one by one, a million take half a second.
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) <= MAX_WIRE_INT:
        return ids
    return tuple(_token_id(field, value, item) for item in ids)


def some_token_ids(field: str, value: Any) -> tuple[int, ...] | None:
    """None, or a list or tuple of at least one token id, each of which counts once."""
    remedy = "name at least one token, or use None to allow all"
    ids = token_ids(field, value, remedy)
    if value is not None and not ids:
        refuse(field, value, "it must hold at least one token id", remedy)
    return tuple(dict.fromkeys(ids)) or None


def token_id_lists(field: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """A list or tuple of non-empty lists or tuples of token ids."""
    remedy = "pass lists of token ids"
    items = _as_tuple(field, value, "lists of token ids", remedy)
    if not all(isinstance(item, list | tuple) and item for item in items):
        refuse(field, value, "it must hold non-empty lists of token ids", remedy)
    return tuple(tuple(_token_id(field, value, token_id) for token_id in item) for item in items)


def logit_bias(field: str, value: Any) -> dict[int, float] | None:
    """None, or a mapping from token id (or its digits, as JSON writes keys) to a finite bias, clamped to ±100."""
    if value is None:
        return None
    remedy = "map token ids to numbers from -100 to 100"
    if not isinstance(value, Mapping):
        refuse(field, value, "it must be a mapping", remedy)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20
        token_id = _token_id(field, value, int(key) if is_digits else key)
        number = _as_float(bias)
        if number is None:
            refuse(field, value, f"the bias {shown(bias)} of token {token_id} is not a finite number", remedy)
        if token_id in biases:
            refuse(field, value, f"it names token {token_id} twice", "give each token one bias")
        biases[token_id] = max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, number))
    return biases or None


def apply_rules(params: msgspec.Struct, rules: Mapping[str, Rule]) -> None:
    """Check every field and store it in its declared type; the struct is frozen for everybody else."""
    for field, rule in rules.items():
        msgspec.structs.force_setattr(params, field, rule(field, getattr(params, field)))


def _token_id(field: str, whole: object, item: object) -> int:
    number = _as_int(item)
    if number is None or not 0 <= number <= MAX_WIRE_INT:
        refuse(field, whole, f"{shown(item)} in it is not a token id", "pass whole numbers from 0 on")
    return number


def _as_tuple(field: str, value: Any, items: str, remedy: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        refuse(field, value, f"it must be a list of {items}", remedy)
    return tuple(value)


def _as_int(value: object) -> int | None:
    """A whole number (numpy's too) as an int; None for everything else, bools among it."""
    return None if isinstance(value, bool) or not isinstance(value, int | Integral) else int(value)


def _as_float(value: object) -> float | None:
    """A finite number (numpy's too) as a float; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, float | int | Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
