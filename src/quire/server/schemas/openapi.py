"""What /openapi.json says of answers that are msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.server.error_object import ErrorAnswer

REFERENCE = "#/$defs/"


def answers(
    whole: type[msgspec.Struct], *, streams: bool = False, error: type[msgspec.Struct] = ErrorAnswer
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers 200 with `whole` as JSON or, where asked to, events; or an error."""
    content: dict[str, Any] = {"application/json": {"schema": schema_of(whole)}}
    if streams:
        # Whether a schema is about the stream or about each event, OpenAPI leaves open.
        content["text/event-stream"] = {"schema": {"description": "Server-sent events."}}
    return {200: {"description": "The answer.", "content": content}, **failures(error)}


def failures(error: type[msgspec.Struct] = ErrorAnswer) -> dict[int | str, dict[str, Any]]:
    """What every route may answer instead."""
    content = {"application/json": {"schema": schema_of(error)}}
    return {
        "4XX": {"description": "The request was refused.", "content": content},
        "5XX": {"description": "The server could not answer.", "content": content},
    }


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """A JSON schema that refers to nothing outside itself; the structs are trees."""
    (root,), parts = msgspec.json.schema_components((struct,), ref_template=REFERENCE + "{name}")
    inlined: dict[str, Any] = _inline(root, parts)
    return inlined


def _inline(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inline(parts[schema["$ref"].removeprefix(REFERENCE)], parts)
        # A union's discriminator would refer to the parts by name.
        return {key: _inline(value, parts) for key, value in schema.items() if key != "discriminator"}
    return [_inline(item, parts) for item in schema] if isinstance(schema, list) else schema
