"""Whatever goes wrong, the client hears of it as an OpenAI error object (message, type, param, code), or as Anthropic's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import (
    ChatTemplateError,
    EngineDeadError,
    GenerationFailedError,
    InvalidRequestError,
    PromptTooLongError,
    QuireError,
    RequestTimeoutError,
)
from quire.server.admission import RETRY_AFTER_S, DrainingError, OverloadedError
from quire.server.error_object import TYPES, ErrorAnswer, error_answer
from quire.server.schemas.fields import HIDDEN_TAG
from quire.server.schemas.message_answers import MessagesError, MessagesErrorBody

logger = logging.getLogger("quire")

INTERNAL_MESSAGE = "The server failed on this request; its log has the reason."
MAX_VALUE_LENGTH = 64
MAX_RULE_LENGTH = 400
"""Of rules and the names of fields, which may quote what was given."""
RETRY_HEADERS = {"Retry-After": str(RETRY_AFTER_S)}
ANTHROPIC_ROUTE = "/v1/messages"
ANTHROPIC_TYPES: dict[int, str] = {
    **TYPES,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


class NoSuchModelError(HTTPException):
    """A request names another model than the one that is served."""

    def __init__(self, model: str, served: str) -> None:
        super().__init__(404, f"There is no model {model!r:.100} here; this server has {served!r}.")


def error_response(path: str, status: int, answer: ErrorAnswer, headers: Mapping[str, str] | None = None) -> Response:
    """An OpenAI error object as the answer of a route, in the shape that the route's clients read."""
    body = anthropic_error(status, answer) if is_anthropic(path) else answer
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def is_anthropic(path: str) -> bool:
    return path == ANTHROPIC_ROUTE or path.startswith(f"{ANTHROPIC_ROUTE}/")


def anthropic_error(status: int, answer: ErrorAnswer) -> MessagesError:
    """An OpenAI error object in Anthropic's shape, which has no place for the field but in the message."""
    kind = ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return MessagesError(MessagesErrorBody(kind, answer.error.message))


def describe(error: Exception) -> tuple[int, ErrorAnswer, dict[str, str]]:
    """Status, body and headers for an exception, also for one that ends a stream. Unknown ones tell nothing."""
    match error:
        case PromptTooLongError():
            return 400, error_answer(400, str(error), error.field, "context_length_exceeded"), {}
        case InvalidRequestError():
            return 400, error_answer(400, str(error), error.field), {}
        case ChatTemplateError():
            return 400, error_answer(400, str(error), "messages"), {}
        case OverloadedError():
            return 429, error_answer(429, str(error), code="overloaded"), RETRY_HEADERS
        case DrainingError() | EngineDeadError() | RequestTimeoutError():
            return 503, error_answer(503, str(error)), RETRY_HEADERS
        case GenerationFailedError():
            return 500, error_answer(500, str(error), code="generation_failed"), {}
        case RequestValidationError():
            return 400, _validation_error(error), {}
        case RecursionError():
            return 400, error_answer(400, "The body is nested too deeply; flatten it."), {}
        case NoSuchModelError():
            return 404, error_answer(404, error.detail, "model", "model_not_found"), {}
        case HTTPException():
            return error.status_code, error_answer(error.status_code, str(error.detail)), dict(error.headers or {})
    logger.error("A request failed.", exc_info=error)
    return 500, error_answer(500, INTERNAL_MESSAGE), {}


def add_error_handlers(app: FastAPI, routes: Sequence[BaseRoute] = ()) -> None:
    """Before any middleware: layers added later are further out. `routes`: those of the app."""

    async def answer(request: Request, error: Exception) -> Response:
        status, body, headers = describe(error)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed_methods(routes, request.scope) or headers["Allow"]
            body = error_answer(status, f"This path takes {headers['Allow']} only.")
        elif body.error.message == HTTPStatus.NOT_FOUND.phrase:
            body = error_answer(status, "There is nothing at this path; GET /openapi.json lists what there is.")
        return error_response(request.url.path, status, body, headers)

    for kind in (QuireError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_middleware(UnforeseenErrors)


class UnforeseenErrors:
    """ASGI middleware: answers what no handler knows, inside the layers that count, name and allow answers.

    Starlette calls its handler of `Exception` outside them all; that one is left with what fails in the layers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        def note(message: Message) -> Awaitable[None]:
            # Not a coroutine of its own: a stream passes here once a chunk.
            nonlocal has_begun
            has_begun = True
            return send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if has_begun:
                raise
            status, body, headers = describe(error)
            await error_response(scope["path"], status, body, headers)(scope, receive, send)


def _allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> str:
    """Of all routes of the path; Starlette names those of the first only."""
    here = [route for route in routes if isinstance(route, Route) and route.matches(scope)[0] is Match.PARTIAL]
    return ", ".join(sorted({method for route in here for method in route.methods or ()}))


def _validation_error(error: RequestValidationError) -> ErrorAnswer:
    """The first breach: the field, what was given, and the rule."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"][1:]]
    field = _cut(".".join(part for part in parts if not part.startswith(HIDDEN_TAG)), MAX_VALUE_LENGTH) or None
    if isinstance(first.get("input"), bytes):
        # FastAPI reads as JSON only what is called so.
        return error_answer(400, "The body is not announced as JSON; send 'Content-Type: application/json'.")
    given = _cut(repr(first.get("input")), MAX_VALUE_LENGTH)
    if first["type"] == "json_invalid":
        return error_answer(
            400, f"The body is not valid JSON: {first.get('ctx', {}).get('error', 'it does not parse')}."
        )
    rule = _cut(first["msg"].removeprefix("Value error, "), MAX_RULE_LENGTH)
    return error_answer(400, f"{field or 'The body'}: {rule}; got {given}.", field)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"
