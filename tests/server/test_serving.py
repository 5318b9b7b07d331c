"""What every route asks for: whose request it is, whether the server is ready, and an end when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.server.records import generating_server

from quire.config import ServerConfig
from quire.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
)
from quire.server.access import KEY_NAME, key_name
from quire.server.admission import Admission, OverloadedError
from quire.server.errors import NoSuchModelError
from quire.server.http_metrics import ARRIVAL_TIME
from quire.server.protection import MADE_REQUEST_ID
from quire.server.request_record import RequestRecord
from quire.server.schemas.sampling import GenerationFields
from quire.server.serving import (
    ClientGoneError,
    client_of,
    generate,
    json_response,
    origin_of,
    preparing,
    prompt_named,
    require_ready,
    tenant_of,
    time_left,
    unless_client_leaves,
)

ADDRESS = ("10.0.0.1", 5)


def request(state: Any = None, headers: dict[str, str] | None = None, **scope: Any) -> Request:
    server = SimpleNamespace(config=ServerConfig()) if state is None else state
    app = SimpleNamespace(state=SimpleNamespace(server=server))
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    route = SimpleNamespace(path="/v1/x")
    return Request({"type": "http", "app": app, "client": ADDRESS, "headers": raw, "route": route, **scope})


def test_a_request_is_known_by_its_own_name_first() -> None:
    def name(headers: dict[str, str], field: str | None) -> str | None:
        return origin_of(request(headers=headers, **{MADE_REQUEST_ID: "made"}), "chat", request_id=field).x_request_id

    assert name({"x-request-id": "head"}, "field") == "head"
    assert name({}, "field") == "field"
    assert name({}, None) == "made"
    assert origin_of(request(), "chat").x_request_id is None


def test_where_a_request_comes_from() -> None:
    trace = {"traceparent": "00-1", "tracestate": "a=b"}
    origin = origin_of(request(headers=trace, **{ARRIVAL_TIME: 3.0}), "embeddings", stream=True, user="u")
    assert (origin.operation, origin.route, origin.stream, origin.arrival_time) == ("embeddings", "/v1/x", True, 3.0)
    assert (origin.traceparent, origin.tracestate) == ("00-1", "a=b")
    assert (origin.client, origin.tenant) == ("10.0.0.1", "10.0.0.1/u")
    before = time.monotonic()
    origin = origin_of(request(client=None), "chat")
    assert (origin.client, origin.tenant, origin.stream) == ("local", "local", False)
    assert before <= origin.arrival_time <= time.monotonic()


def test_the_key_that_let_a_request_in_is_its_tenant() -> None:
    given = {"x-api-key": "given"}
    assert tenant_of(request(headers=given)) == key_name(b"given")
    assert tenant_of(request(headers=given, **{KEY_NAME: "key-of-the-ring"})) == "key-of-the-ring"
    with_keys = SimpleNamespace(config=ServerConfig(api_key=("a",)))
    assert client_of(request(with_keys, given, **{KEY_NAME: "key-of-the-ring"})) == "key-of-the-ring"


def test_a_prompt_that_is_prepared_has_a_place() -> None:
    state = SimpleNamespace(config=ServerConfig(), admission=Admission(1, 1))
    with preparing(request(state)):
        with pytest.raises(OverloadedError), preparing(request(state)):
            pass
        assert state.admission.num_unfinished == 1
    assert state.admission.num_unfinished == 0


def test_a_refused_prompt_is_called_what_the_request_calls_it() -> None:
    for of_several, message in ((False, "Too long."), (True, "input[3]: Too long.")):
        with pytest.raises(PromptTooLongError) as refused, prompt_named("input[3]", of_several=of_several):
            raise PromptTooLongError("Too long.", field="prompt", value=7)
        assert (str(refused.value), refused.value.field, refused.value.value) == (message, "input[3]", 7)


def test_what_is_refused_for_another_field_keeps_its_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^No\.$") as refused, prompt_named("input", of_several=True):
        raise InvalidRequestError("No.", field="seed")
    assert refused.value.field == "seed"


def test_of_no_times_none_counts_and_none_is_past() -> None:
    now = time.monotonic()
    assert time_left(ServerConfig(queue_timeout=None, request_timeout=None), now, has_begun=False) == (None, "")
    assert time_left(ServerConfig(queue_timeout=5, request_timeout=None), now, has_begun=True) == (None, "")
    left, _ = time_left(ServerConfig(queue_timeout=1e6, request_timeout=None), now - 1000, has_begun=False)
    assert left is not None
    assert left <= 1e6 - 1000


def test_work_ends_with_its_client() -> None:
    async def run() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        began, ended = asyncio.Event(), list[str]()

        async def work() -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("work")

        working = asyncio.create_task(unless_client_leaves(messages.get, work()))
        await began.wait()
        messages.put_nowait({"type": "http.request", "body": b""})
        messages.put_nowait({"type": "another"})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not working.done()
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientGoneError):
            async with asyncio.timeout(30):
                await working
        assert ended == ["work"], "it is waited for"

    asyncio.run(run())


def test_work_that_is_done_is_answered_and_nobody_listens_on() -> None:
    async def run() -> None:
        num_tasks = len(asyncio.all_tasks())

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def work(result: int) -> int:
            return 7 // result

        assert await unless_client_leaves(receive, work(1)) == 7
        with pytest.raises(ZeroDivisionError):
            await unless_client_leaves(receive, work(0))
        assert len(asyncio.all_tasks()) == num_tasks

    asyncio.run(run())


def test_an_answer_that_came_as_the_client_left_is_an_answer() -> None:
    async def run() -> None:
        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def work() -> int:
            return 7

        assert await unless_client_leaves(receive, work()) == 7

    asyncio.run(run())


class Engine:
    """A connection that is ready once it has been waited for, if it ever is."""

    def __init__(self, *, ready: bool, becomes_ready: bool = False, alive: bool = True) -> None:
        self.ready = ready
        self._becomes_ready = becomes_ready
        self._alive = alive

    def check_alive(self) -> None:
        if not self._alive:
            raise EngineDeadError("gone")

    async def wait_if_loaded(self) -> None:
        assert not self.ready
        self.ready = self._becomes_ready


def test_a_server_that_cannot_generate_says_so() -> None:
    async def state_of(model: str | None, **engine: bool) -> Any:
        state = SimpleNamespace(connection=Engine(**engine), model_name="tiny")
        return (await require_ready(request(state), model)) is state

    async def run() -> None:
        assert await state_of(None, ready=True)
        assert await state_of("tiny", ready=True)
        assert await state_of("tiny", ready=False, becomes_ready=True)
        with pytest.raises(EngineDeadError, match="still loading"):
            await state_of("tiny", ready=False)
        with pytest.raises(EngineDeadError, match="gone"):
            await state_of("tiny", ready=True, alive=False)
        with pytest.raises(NoSuchModelError):
            await state_of("other", ready=True)

    asyncio.run(run())


def test_an_answer_of_json_has_the_headers_that_were_asked_for() -> None:
    response = json_response({"a": [1.5, None]}, {"x-own": "1"})
    assert response.body == b'{"a":[1.5,null]}'
    assert (response.headers["content-type"], response.headers["x-own"]) == ("application/json", "1")


def recording(generate: Any, records: list[RequestRecord], config: ServerConfig | None = None) -> Any:
    """A server whose engine generates so, and whose tracer is told of records."""
    return generating_server(generate, config, SimpleNamespace(trace=records.append))


def test_the_engine_gets_what_came_with_a_request_and_its_end_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire.requests")
    asked: list[Any] = []
    records: list[RequestRecord] = []

    async def outputs(*prompt_and_params: Any, **fields: Any) -> AsyncGenerator[RequestOutput, None]:
        asked.append((*prompt_and_params, fields))
        try:
            times = RequestMetrics(first_scheduled_time=1.0, first_token_time=2.0, last_token_time=3.0)
            times.num_preemptions, times.token_gaps = 2, [0.5]
            for _ in range(2):
                sample = CompletionOutput(1, "a", [5])
                yield RequestOutput("r", "p", [1, 2], [sample], False, metrics=times, num_cached_tokens=1)
                times.last_token_time, times.first_token_time = 4.0, 9.0
        finally:
            asked.append("closed")

    state = recording(outputs, records)
    params, body = SamplingParams(n=2, max_tokens=9), GenerationFields(priority=-3, cache_salt="salt")
    origin = origin_of(request(**{ARRIVAL_TIME: 0.5}), "chat", user="u")

    async def run() -> None:
        async with aclosing(generate(state, origin, "p", params, body)) as running:
            await anext(running)
            await anext(running)
            before_end = time.monotonic()
        fields = {"priority": -3, "cache_salt": "salt", "tenant": "10.0.0.1/u"}
        assert asked == [("p", params, fields), "closed"]
        assert records[0].finished_time >= before_end

    asyncio.run(run())
    (record,) = records
    assert (record.n, record.max_tokens, record.request_id) == (2, 9, "r")
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_preemptions) == (2, 1, 2)
    assert (record.first_scheduled_time, record.first_token_time, record.last_token_time) == (1.0, 2.0, 4.0)
    assert (dict(record.num_sample_tokens), record.num_gaps) == ({1: 2}, 1)
    assert (record.status, record.finish_reason, record.error) == (499, "abort", None)
    assert [line.getMessage() for line in caplog.records] == ["request"]
    assert value_of(state, "time_to_first_token_seconds_sum") == 1.5
    assert value_of(state, "inter_token_latency_seconds_count") == 1, "the gap is told once, however often it comes"
    assert state.admission.num_unfinished == 0


def value_of(state: Any, name: str) -> float:
    (line,) = [line for line in state.metrics.render().decode().splitlines() if line.startswith(f"quire:{name}")]
    return float(line.split()[-1])


async def read(state: Any) -> list[RequestOutput]:
    origin = origin_of(request(**{ARRIVAL_TIME: time.monotonic() - 100}), "chat")
    return [one async for one in generate(state, origin, "p", SamplingParams(), GenerationFields())]


def output_of(**sample: Any) -> RequestOutput:
    return RequestOutput("r", "p", [1, 2], [CompletionOutput(0, "a", [5], **sample)], False)


def test_a_request_that_has_begun_does_not_wait_in_the_queue() -> None:
    """It came longer ago than it may wait; its first token is there at once."""
    records: list[RequestRecord] = []

    async def outputs(*_: Any, **__: Any) -> AsyncGenerator[RequestOutput, None]:
        yield output_of()
        await asyncio.sleep(0.01)
        yield output_of(finish_reason="length")

    assert len(asyncio.run(read(recording(outputs, records, ServerConfig(queue_timeout=5))))) == 2
    assert records[0].finish_reason == "length"
    with pytest.raises(RequestTimeoutError, match="not finished within 5 s"):
        asyncio.run(read(recording(outputs, records, ServerConfig(request_timeout=5))))
