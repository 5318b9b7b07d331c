"""Asking a server what it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from quire.client.address import RemoteError, ServerAddress, fetch, shorten


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`max_model_len` is None where the server does not tell (it is no part of OpenAI's shape)."""

    name: str
    max_model_len: int | None


def find_model(address: ServerAddress, name: str | None = None) -> ServedModel:
    """The model of that name, or the first one. Raises RemoteError naming what is served instead."""
    with httpx.Client(timeout=10, trust_env=False) as http:
        answer = fetch(http, address, "/v1/models")
    try:
        answer.raise_for_status()
        models = [_served_model(card) for card in answer.json()["data"]]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteError(
            f"{address.root}/v1/models is not answered as OpenAI does: {answer.status_code} {shorten(answer.text)}"
        ) from error
    for model in models:
        if name in (None, model.name):
            return model
    served = ", ".join(model.name for model in models) or "nothing"
    raise RemoteError(f"The server at {address.root} serves {served}, not {name}.")


def _served_model(card: dict[str, Any]) -> ServedModel:
    limit = card.get("max_model_len")
    return ServedModel(str(card["id"]), limit if isinstance(limit, int) else None)
