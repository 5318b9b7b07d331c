"""Checks of what callers from Python give with a prompt: in the engine a wrong type would end everybody's requests."""

from __future__ import annotations

from typing import Any

from quire.errors import InvalidRequestError

LARGEST_PRIORITY = 2**63 - 1
"""Of what fits a message to the engine's process."""


def check_kind(value: object, kind: type, field: str) -> None:
    """Raises InvalidRequestError for parameters of another kind."""
    if not isinstance(value, kind):
        raise _refused(field, f"must be {kind.__name__}", value)


def check_request_fields(*, request_id: Any, priority: Any, tenant: Any, cache_salt: Any = None) -> None:
    """Raises InvalidRequestError."""
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > LARGEST_PRIORITY:
        raise _refused("priority", "must be a whole number of at most 64 bits", priority)
    if not isinstance(tenant, str):
        raise _refused("tenant", "must be text", tenant)
    for field, value in (("request_id", request_id), ("cache_salt", cache_salt)):
        if value is not None and not isinstance(value, str):
            raise _refused(field, "must be text or None", value)
    for field, value in (("request_id", request_id), ("cache_salt", cache_salt), ("tenant", tenant)):
        if value is not None and not _is_unicode(value):
            raise _refused(field, "has half of a surrogate pair; it must be text that UTF-8 can encode", value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(field: str, rule: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(f"{field} {rule}, got {value!r:.100}.", field=field, value=repr(value)[:100])
