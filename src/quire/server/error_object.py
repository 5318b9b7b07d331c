"""OpenAI's error object. A file of its own: the connection answers with it before the application is there."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import Struct

TYPES: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable_error",
}


class ErrorBody(Struct):
    """`param` is the request's field that is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Struct):
    error: ErrorBody


def error_answer(status: int, message: str, param: str | None = None, code: str | None = None) -> ErrorAnswer:
    kind = TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return ErrorAnswer(ErrorBody(message, kind, param, code))
