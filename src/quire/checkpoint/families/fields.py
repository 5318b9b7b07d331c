"""Typed reading of config.json and GGUF metadata. A field that is null counts as absent, but where `is_null` asks."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from quire.errors import CheckpointError, UnsupportedModelError

T = TypeVar("T")

LARGEST_INTEGER = 2**31 - 1
"""No size in a real config comes near it; one beyond it is damage, and must not become an allocation."""

LONGEST_VALUE = 200
"""Characters of a value in a message; a damaged file can have one of megabytes."""
_REPR = reprlib.Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _REPR.maxother = LONGEST_VALUE


class ConfigFields:
    """The fields of one JSON object, or the GGUF metadata keys that start with `prefix`.

    A value of the wrong type, or out of range, raises CheckpointError; a value quire has no implementation for
    raises UnsupportedModelError. Both name the file, the field and the value.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.source = source
        self._values = values
        self._prefix = prefix

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = LARGEST_INTEGER
    ) -> int:
        """Without a default the field must be there."""
        value = self.optional_integer(name, minimum=minimum, maximum=maximum)
        return self._required(name, default if value is None else value)

    def optional_integer(self, name: str, *, minimum: int = 1, maximum: int = LARGEST_INTEGER) -> int | None:
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.damaged(name, f"a whole number from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Finite and above 0, as every number quire reads is. Without a default the field must be there."""
        value = self.optional_number(name)
        return self._required(name, default if value is None else value)

    def optional_number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self.damaged(name, "a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.damaged(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self._get(name)
        if value is not None and not isinstance(value, str):
            raise self.damaged(name, "a string")
        return value

    def texts(self, name: str) -> list[str] | None:
        return self._list(name, {str}, "a list of strings")

    def integers(self, name: str) -> list[int] | None:
        return self._list(name, {int}, "a list of whole numbers")

    def numbers(self, name: str) -> list[float] | None:
        return self._list(name, {int, float}, "a list of numbers")

    def flags(self, name: str) -> list[bool] | None:
        """None where the field is not a list."""
        value = self._get(name)
        if not isinstance(value, list):
            return None
        if not all(isinstance(item, bool) for item in value):
            raise self.damaged(name, "a list of true and false")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id or a list of ids."""
        value = self._get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.damaged(name, "a token id or a list of token ids")
        return tuple(ids)

    def choice(self, name: str, supported: Mapping[str, T], default: str | None = None) -> T:
        """What the named option stands for."""
        value = self._required(name, self.text(name) or default)
        if value not in supported:
            raise self.unsupported(name, f"one of {', '.join(supported)}")
        return supported[value]

    def must_be(self, name: str, value: object) -> None:
        """Stop unless the field is absent or has the only value quire implements."""
        if self._get(name) not in (None, value):
            raise self.unsupported(name, f"only {value!r}")

    def must_be_absent(self, name: str) -> None:
        """Stop if a feature that quire lacks is asked for; empty and null ask for nothing."""
        if self._get(name):
            raise self.unsupported(name, "only checkpoints without it")

    def section(self, name: str) -> ConfigFields | None:
        """A nested object; an empty one counts as absent."""
        value = self._get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.damaged(name, "an object")
        # Nested fields are named in messages as rope_scaling.factor.
        nested = {f"{self._prefix}{name}.{key}": item for key, item in value.items()}
        return ConfigFields(nested, self.source, f"{self._prefix}{name}.")

    def is_null(self, name: str) -> bool:
        """Whether it is there and says that there is none, where its absence says something else."""
        return self._prefix + name in self._values and self._get(name) is None

    def names(self, prefix: str) -> list[str]:
        """The fields that start so."""
        return [name for name in self._values if name.startswith(prefix)]

    def damaged(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source}: {self._prefix}{name} is {self._shown(name)}, but it must be {expected}; fetch the file again."
        )

    def unsupported(self, name: str, supported: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.source}: {self._prefix}{name} is {self._shown(name)}, and quire supports {supported}."
        )

    def _shown(self, name: str) -> str:
        text = _REPR.repr(self._get(name))
        return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."

    def _get(self, name: str) -> Any:
        return self._values.get(self._prefix + name)

    def _list(self, name: str, types: set[type[T]], expected: str) -> list[T] | None:
        """None where there is none. All of a vocabulary is looked at, as fast as Python can."""
        value: list[T] | None = self._get(name)
        if value is not None and not (isinstance(value, list) and types.issuperset(map(type, value))):
            raise self.damaged(name, expected)
        return value

    def _required(self, name: str, value: T | None) -> T:
        if value is None:
            raise CheckpointError(f"{self.source} lacks {self._prefix}{name}; fetch the file again.")
        return value
