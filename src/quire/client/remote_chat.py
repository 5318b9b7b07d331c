"""Answers of a server, as they stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from quire.client.address import RemoteError, ServerAddress, error_sentence, shorten
from quire.client.stream_events import EventCutter
from quire.core.text import check_unicode
from quire.errors import InvalidRequestError, in_words

JSON = {"Content-Type": "application/json"}
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 600.0


class RemoteModel:
    """One model of a server. Yields pieces of text with the number of tokens they stand for.

    Leaving a generator early closes its connection, by which a server knows that nobody listens. Raises
    InvalidRequestError if the server finds fault with the request (400 to 422), otherwise RemoteError.
    """

    def __init__(self, address: ServerAddress, model: str) -> None:
        self._address = address
        self._model = model

    def chat(self, messages: list[dict[str, str]], fields: Mapping[str, Any]) -> AsyncGenerator[tuple[str, int], None]:
        """`fields` are of /v1/chat/completions."""
        for message in messages:
            check_unicode(message["content"])
        return self._stream("/v1/chat/completions", {"messages": messages, **fields})

    def complete(self, prompt: str, fields: Mapping[str, Any]) -> AsyncGenerator[tuple[str, int], None]:
        """`fields` are of /v1/completions."""
        check_unicode(prompt)
        return self._stream("/v1/completions", {"prompt": prompt, **fields})

    async def _stream(self, path: str, fields: dict[str, Any]) -> AsyncGenerator[tuple[str, int], None]:
        """An event counts as one token; where the server reports usage, the last piece corrects the sum."""
        body = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}, **fields}
        cutter, counted = EventCutter(), 0
        try:
            async with self._post(path, body) as answer:
                async for data in answer.aiter_bytes():
                    for chunk in cutter.feed(data):
                        if chunk.error is not None:
                            raise RemoteError(f"The server broke off: {shorten(error_sentence(chunk.error))}")
                        for choice in chunk.choices:
                            if choice.adds_output():
                                counted += 1
                                yield choice.shown_text, 1
                        if chunk.usage is not None and chunk.usage.completion_tokens:
                            yield "", chunk.usage.completion_tokens - counted
                            counted = chunk.usage.completion_tokens
        except httpx.HTTPError as error:
            raise RemoteError(f"{self._address.root} does not answer: {in_words(error)}.") from error

    @asynccontextmanager
    async def _post(self, path: str, body: dict[str, Any]) -> AsyncGenerator[httpx.Response, None]:
        """The streaming answer, its status checked."""
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        async with (
            httpx.AsyncClient(headers={**self._address.headers, **JSON}, timeout=timeout, trust_env=False) as http,
            http.stream("POST", self._address.root + path, content=_encoded(body)) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                raise _refusal(answer)
            yield answer


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a UnicodeEncodeError is one
        raise InvalidRequestError(f"The request cannot be sent: {error}.") from error


def _refusal(answer: httpx.Response) -> InvalidRequestError | RemoteError:
    """The server's own sentence where it is in OpenAI's shape."""
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = shorten(answer.text)
    if answer.status_code in (400, 404, 413, 422):
        return InvalidRequestError(message)
    return RemoteError(f"The server answered {answer.status_code}: {message}")
