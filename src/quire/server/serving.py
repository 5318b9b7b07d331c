"""How a route runs a request: admission, the engine, time-outs, and the record that metrics, traces and logs are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TypeVar

import msgspec
from fastapi import HTTPException, Request, Response
from starlette.types import Receive

from quire.config import ServerConfig
from quire.core.outputs import RequestOutput, check_sample
from quire.core.sampling_params import SamplingParams
from quire.engine.input_processor import Prompt
from quire.engine.remote_engine import STILL_LOADING
from quire.errors import EngineDeadError, InvalidRequestError, RequestTimeoutError
from quire.server.access import KEY_NAME, given_keys, key_name
from quire.server.errors import NoSuchModelError, describe
from quire.server.http_metrics import ARRIVAL_TIME
from quire.server.protection import MADE_REQUEST_ID
from quire.server.request_log import log_request
from quire.server.request_record import Operation, Origin, RequestRecord
from quire.server.schemas.sampling import GenerationFields
from quire.server.state import ServerState, server_state

Result = TypeVar("Result")


CLIENT_GONE = 499
"""Nobody reads it; logs and metrics do. nginx's number."""


class ClientGoneError(HTTPException):
    """The client closed its connection; nobody is left to answer."""

    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, "The client closed the connection.")


def origin_of(
    request: Request,
    operation: Operation,
    *,
    stream: bool = False,
    user: str | None = None,
    request_id: str | None = None,
) -> Origin:
    """The last two are the request's own fields. With one API key for many users `user` tells them apart.

    `request_id` is the client's name for a request that has none in its headers; without either it is known by the one that was made.
    """
    headers = request.headers
    return Origin(
        operation=operation,
        route=request.scope["route"].path,
        client=client_of(request),
        tenant=tenant_of(request) + (f"/{user}" if user else ""),
        x_request_id=headers.get("x-request-id") or request_id or request.scope.get(MADE_REQUEST_ID),
        traceparent=headers.get("traceparent"),
        tracestate=headers.get("tracestate"),
        stream=stream,
        arrival_time=request.scope.get(ARRIVAL_TIME, time.monotonic()),
    )


def client_of(request: Request) -> str:
    """Whom limits count, and whose responses are kept: see `Origin.client`."""
    return tenant_of(request) if server_state(request).config.api_key else address_of(request)


def tenant_of(request: Request) -> str:
    """The key that let it in; where none is needed the one that it has, if any, or the address."""
    name: str | None = request.scope.get(KEY_NAME)
    if name is not None:
        return name
    given = given_keys(request.scope["headers"])
    return key_name(given[0]) if given else address_of(request)


def address_of(request: Request) -> str:
    return request.client.host if request.client else "local"


async def generate(
    state: ServerState,
    origin: Origin,
    prompt: Prompt,
    params: SamplingParams,
    body: GenerationFields,
    *,
    field: str = "prompt",
    of_several: bool = False,
) -> AsyncGenerator[RequestOutput, None]:
    """One prompt through the engine, admitted, timed and recorded. Closing the generator aborts the request.

    `body`: for its priority and cache salt. `field`: which of the request's has the prompt, and whether it is `of_several`. No
    output has a sample that failed. Raises what `describe` in errors.py knows.
    """
    with prompt_named(field, of_several=of_several), recorded(state, origin) as record:
        record.n, record.max_tokens = params.n, params.max_tokens
        outputs = state.llm.generate(
            prompt, params, priority=body.priority or 0, cache_salt=body.cache_salt, tenant=origin.tenant
        )
        async with aclosing(outputs):
            async for output in _within_limits(state, outputs, origin.arrival_time):
                _note(state, record, output)
                for sample in output.outputs:
                    # Here and not by whoever reads: the record is told what is raised here only.
                    check_sample(sample)
                yield output


@contextmanager
def preparing(request: Request) -> Iterator[None]:
    """Holds a place for a request while its prompt is rendered and tokenized: of megabytes that takes seconds. Raises OverloadedError
    or DrainingError."""
    with server_state(request).admission.enter(client_of(request)):
        yield


@contextmanager
def prompt_named(field: str, *, of_several: bool = False) -> Iterator[None]:
    """Refusals of a prompt speak of the request's own field; whoever sends several is told which one it is."""
    try:
        yield
    except InvalidRequestError as error:
        if error.field != "prompt":
            raise
        message = f"{field}: {error}" if of_several else str(error)
        raise type(error)(message, field=field, value=error.value) from error


@contextmanager
def recorded(state: ServerState, origin: Origin) -> Iterator[RequestRecord]:
    """Admits a request, and tells of its end, however it ends. Raises OverloadedError or DrainingError."""
    with state.admission.enter(origin.client):
        record = RequestRecord(origin, state.model_name, finished_time=time.monotonic())
        try:
            yield record
        except BaseException as error:
            _note_failure(record, error)
            raise
        finally:
            record.finished_time = time.monotonic()
            state.metrics.observe_request(record)
            log_request(record)
            if state.tracer is not None:
                state.tracer.trace(record)


async def _within_limits(
    state: ServerState, outputs: AsyncGenerator[RequestOutput, None], arrival_time: float
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs, as long as they come in time."""
    config = state.config
    if config.queue_timeout is None and config.request_timeout is None:
        async for output in outputs:
            yield output
        return
    first = True
    while True:
        left, what_is_late = time_left(config, arrival_time, has_begun=not first)
        try:
            # Not `wait_for`, which in Python 3.11 swallows a cancellation that comes with the output.
            async with asyncio.timeout(left):
                output = await anext(outputs)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise RequestTimeoutError(f"{what_is_late}; the server is busy: try again later.") from error
        first = False
        yield output


def time_left(config: ServerConfig, arrival_time: float, *, has_begun: bool) -> tuple[float | None, str]:
    """Seconds until a request is given up, None for never, and what there is to say then."""
    limits = {"started": None if has_begun else config.queue_timeout, "finished": config.request_timeout}
    due = [(limit, what) for what, limit in limits.items() if limit is not None]
    if not due:
        return None, ""
    limit, what = min(due)
    return max(0.0, arrival_time + limit - time.monotonic()), f"The request was not {what} within {limit:g} s"


def _note(state: ServerState, record: RequestRecord, output: RequestOutput) -> None:
    """Metrics as tokens come. Outputs are deltas or, for those who asked for the end only, everything."""
    times = output.metrics
    now = times.last_token_time
    if now is not None:
        if record.first_token_time is None:
            record.request_id = output.request_id
            record.first_token_time = times.first_token_time
            record.first_scheduled_time = times.first_scheduled_time
            record.num_prompt_tokens = len(output.prompt_token_ids)
            record.num_cached_tokens = output.num_cached_tokens
            state.metrics.observe_first_token((times.first_token_time or now) - record.origin.arrival_time)
        record.last_token_time = now
    for gap in times.token_gaps[record.num_gaps :]:
        state.metrics.observe_tokens(gap)
    record.num_gaps = len(times.token_gaps)
    record.num_preemptions = times.num_preemptions
    for sample in output.outputs:
        record.num_sample_tokens[sample.index] += len(sample.token_ids)
        if sample.finish_reason is not None:
            record.finish_reason = sample.finish_reason


def _note_failure(record: RequestRecord, error: BaseException) -> None:
    if isinstance(error, GeneratorExit | asyncio.CancelledError):
        record.finish_reason = "abort"
        record.status = CLIENT_GONE
    elif isinstance(error, Exception):
        record.status = describe(error)[0]
        record.error = type(error).__name__
        record.finish_reason = None if isinstance(error, InvalidRequestError) else "error"


async def unless_client_leaves(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client closes its connection. Raises ClientGoneError then.

    To be called once the body has been read: from then on the connection has only its end left to tell.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def require_ready(request: Request, model: str | None = None) -> ServerState:
    """The state of a server that can generate. Raises EngineDeadError (503) while it cannot.

    `model`: which the request names, if any. Raises NoSuchModelError for another than the one that is served.
    """
    state = server_state(request)
    state.connection.check_alive()
    if not state.connection.ready:
        await state.connection.wait_if_loaded()
    if not state.connection.ready:
        raise EngineDeadError(STILL_LOADING)
    if model is not None and model != state.model_name:
        raise NoSuchModelError(model, state.model_name)
    return state


def json_response(answer: object, headers: Mapping[str, str] | None = None) -> Response:
    """Without pydantic, which takes several times as long over a few hundred thousand numbers."""
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)
