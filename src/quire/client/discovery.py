"""Asking a server what it serves."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from quire.client.address import RemoteError, ServerAddress, shorten
from quire.errors import in_words


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`max_model_len` is None where the server does not tell (it is no part of OpenAI's shape)."""

    name: str
    max_model_len: int | None


def find_model(address: ServerAddress, name: str | None = None) -> ServedModel:
    """The model of that name, or the first one. Raises RemoteError naming what is served instead."""
    try:
        answer = httpx.get(f"{address.root}/v1/models", headers=address.headers, timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        raise RemoteError(
            f"No server answers at {address.root}: {in_words(error)}; start one with `quire serve`."
        ) from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise RemoteError(f"The server at {address.root} wants a key: add --api-key KEY.")
    try:
        answer.raise_for_status()
        models = [ServedModel(str(card["id"]), card.get("max_model_len")) for card in answer.json()["data"]]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(
            f"{address.root}/v1/models is not answered as OpenAI does: {answer.status_code} {shorten(answer.text)}"
        ) from error
    for model in models:
        if name in (None, model.name):
            return model
    served = ", ".join(model.name for model in models) or "nothing"
    raise RemoteError(f"The server at {address.root} serves {served}, not {name}.")
