"""Bodies are JSON as RFC 8259 has it: no NaN, no Infinity, no number that no float can hold, no half surrogates."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute


class StrictJSONRequest(Request):
    async def json(self) -> Any:
        """The body parsed. Raises json.JSONDecodeError, which FastAPI turns into its validation error."""
        try:
            return msgspec.json.decode(await self.body())
        except RecursionError:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictJSONRoute(APIRoute):
    """What makes FastAPI read bodies that way."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(StrictJSONRequest(request.scope, request.receive))

        return read_strictly


def json_router() -> APIRouter:
    """For routes that read JSON, and write their answers themselves."""
    return APIRouter(route_class=StrictJSONRoute, default_response_class=Response)
