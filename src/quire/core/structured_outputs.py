"""What shape a request's text must have: exactly one of a JSON Schema, a regex, a choice, a grammar, JSON, or tags.

Only sizes and types are judged here. Whether the shape can be enforced is for `quire.engine.grammar_check`, which asks
a process that may be killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import msgspec

from quire.core.sampling_rules import refuse
from quire.errors import InvalidRequestError

MAX_CHARACTERS = 512 * 1024
"""Of a schema, regex, grammar or tag as text, and of all choices together."""
MAX_DEPTH = 64
"""Objects and arrays within each other, in a schema or a tag."""
MAX_CHOICES = 1000
MAX_LEXER_STATES = 20_000
"""Of one sequence's grammar while it runs, about 40 MB; llguidance's own limit is half a gigabyte."""

Kind = Literal["json", "regex", "choice", "grammar", "json_object", "structural_tag"]


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the fields is set; `json` and `structural_tag` may be given as objects and are stored as text.

    Raises InvalidRequestError.
    """

    json: dict[str, Any] | str | None = None
    """A JSON Schema; the text is JSON on one line that the schema accepts, properties in the schema's order."""
    regex: str | None = None
    """In the syntax of Rust's regex crate, for the whole text."""
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """Lark, or the EBNF of llama.cpp (GBNF)."""
    json_object: bool = False
    structural_tag: dict[str, Any] | str | None = None
    """`{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`: free text with schemas between tags."""
    compiled_from: str | None = None
    """What the worker compiles; filled by the input processor, which had it checked."""

    def __post_init__(self) -> None:
        given = [field for field in _RULES if getattr(self, field) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs has {' and '.join(given) or 'nothing'} set, but it must have exactly one of"
                f" {', '.join(_RULES)}.",
                field="structured_outputs",
                value=given,
            )
        field = given[0]
        msgspec.structs.force_setattr(self, field, _RULES[field](f"structured_outputs.{field}", getattr(self, field)))

    @property
    def kind(self) -> Kind:
        return next(field for field in _RULES if getattr(self, field) not in (None, False))

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """What the text must fit, if that is JSON."""
        if self.json_object:
            return {"type": "object"}
        schema: dict[str, Any] | None = None if self.json is None else json.loads(self.source)
        return schema

    @property
    def source(self) -> str:
        """The chosen field as text; of a choice, a JSON array."""
        value: str | bool | tuple[str, ...] = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value)


def structured_outputs(field: str, value: Any) -> StructuredOutputs | None:
    """The rule of `SamplingParams.structured_outputs`: None, or a StructuredOutputs."""
    if value is not None and not isinstance(value, StructuredOutputs):
        refuse(field, value, "it must be a StructuredOutputs", "pass StructuredOutputs(json=...), for instance")
    return value


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        refuse(field, value, "it must be a text of at least one character", "pass a string")
    _check_size(field, len(value))
    return value


def _json_object_text(field: str, value: Any) -> str:
    """A JSON object, or its text; stored as text, with the order of its keys."""
    try:
        if isinstance(value, str):
            _check_size(field, len(value))
            value = json.loads(value)
        if not isinstance(value, Mapping):
            _refuse(
                field,
                value,
                f"has the type {type(value).__name__}, but it must be a JSON object; pass a dict or its text",
            )
        _check_depth(field, value)
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except InvalidRequestError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(field, None, f"is not JSON ({error}); pass a dict or its JSON text")
    _check_size(field, len(text))
    return text


def _choices(field: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) and item for item in value):
        refuse(field, value, "it must hold at least one string, and no empty one", "pass a list of strings")
    if len(value) > MAX_CHOICES:
        _refuse(field, len(value), f"has {len(value)} strings, but at most {MAX_CHOICES} are allowed; offer fewer")
    _check_size(field, sum(map(len, value)))
    return tuple(value)


def _true(field: str, value: Any) -> bool:
    if value is not True:
        refuse(field, value, "it must be True or False", "pass a bool")
    return True


def _check_size(field: str, size: int) -> None:
    if size > MAX_CHARACTERS:
        _refuse(field, size, f"has {size} characters, but at most {MAX_CHARACTERS} are allowed; shorten it")


def _check_depth(field: str, value: Any) -> None:
    """Level by level, so that neither depth nor a value that holds itself costs more than the limits allow."""
    level, num_values = [value], 0
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            parts = container.values() if isinstance(container, Mapping) else container
            num_values += len(parts)
            inner.extend(part for part in parts if isinstance(part, Mapping | list | tuple))
            _check_size(field, num_values)
        if not inner:
            return
        level = inner
    _refuse(field, None, f"nests deeper than {MAX_DEPTH} levels; flatten it, or use $ref in place of nesting")


def _refuse(field: str, value: object, complaint: str) -> NoReturn:
    """As `refuse`, without showing a value that may be too large to print."""
    raise InvalidRequestError(f"{field} {complaint}.", field=field, value=value)


_RULES: dict[Kind, Callable[[str, Any], Any]] = {
    "json": _json_object_text,
    "regex": _text,
    "choice": _choices,
    "grammar": _text,
    "json_object": _true,
    "structural_tag": _json_object_text,
}
