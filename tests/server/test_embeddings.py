"""/v1/embeddings, /v1/score and /v1/rerank: the routes on a real engine with a tiny BERT, called as ASGI."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from quire.config import ServerConfig
from quire.core.embedding import PoolingOutput, PoolingParams, PoolingRequestOutput
from quire.core.outputs import RequestMetrics
from quire.engine.async_llm import AsyncLLM
from quire.server.admission import Admission
from quire.server.errors import add_error_handlers
from quire.server.metrics import Metrics
from quire.server.request_record import RequestRecord
from quire.server.routes import embeddings
from quire.server.schemas.embeddings import MAX_TEXTS


def make_app(llm: AsyncLLM, config: ServerConfig | None = None) -> FastAPI:
    app = FastAPI()
    app.state.server = SimpleNamespace(
        config=config or ServerConfig(),
        model_name="tiny",
        llm=llm,
        connection=SimpleNamespace(check_alive=lambda: None, ready=True),
        admission=Admission(8, 8),
        metrics=Metrics("tiny"),
        tracer=None,
    )
    app.include_router(embeddings.router)
    add_error_handlers(app)
    return app


@pytest.fixture(scope="module")
def app(tiny_bert: Path) -> Iterator[FastAPI]:
    llm = AsyncLLM(str(tiny_bert), num_threads=1)
    yield make_app(llm)
    llm.shutdown()


def post(app: FastAPI, path: str, **body: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(path, json=body)

    return asyncio.run(send())


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def error(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    assert found["type"] == "invalid_request_error"
    return found


def test_the_answers_shape(app: FastAPI) -> None:
    response = post(app, "/v1/embeddings", model="tiny", input=["a cat", "dog"], user="somebody", unknown_field=1)
    body = response.json()
    assert (body["object"], body["model"]) == ("list", "tiny")
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert {item["object"] for item in body["data"]} == {"embedding"}
    assert body["usage"] == {"prompt_tokens": 4 + 5, "total_tokens": 9}
    assert np.linalg.norm(vectors(response), axis=1) == pytest.approx([1.0, 1.0])


def test_all_forms_of_input_agree(app: FastAPI) -> None:
    ids = [2, 4, 56, 3]
    text = app.state.server.llm.tokenizer.decode(ids)
    ids = app.state.server.llm.tokenizer.encode(text)
    forms = [text, [text], ids, [ids], [text, text], [ids, ids]]
    found = [vectors(post(app, "/v1/embeddings", input=form)) for form in forms]
    assert [len(each) for each in found] == [1, 1, 1, 1, 2, 2]
    assert {tuple(vector) for each in found for vector in each} == {tuple(found[0][0])}


def test_base64_is_little_endian_float32(app: FastAPI) -> None:
    plain = vectors(post(app, "/v1/embeddings", input="a cat"))[0]
    encoded = post(app, "/v1/embeddings", input="a cat", encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == plain


def test_fewer_dimensions(app: FastAPI) -> None:
    whole = np.array(vectors(post(app, "/v1/embeddings", input="a cat"))[0])
    short = vectors(post(app, "/v1/embeddings", input="a cat", dimensions=5))[0]
    assert short == pytest.approx(whole[:5] / np.linalg.norm(whole[:5]), abs=1e-6)
    found = error(post(app, "/v1/embeddings", input="a cat", dimensions=33))
    assert (found["param"], "dimensions is 33" in found["message"]) == ("dimensions", True)


def test_more_texts_than_are_in_flight_keep_their_order(app: FastAPI) -> None:
    texts = [chr(ord("a") + i % 26) * (1 + i // 26) for i in range(200)]
    whole = vectors(post(app, "/v1/embeddings", input=texts))
    for i in (0, 77, 199):
        assert whole[i] == pytest.approx(vectors(post(app, "/v1/embeddings", input=texts[i]))[0], abs=1e-5)


def test_a_text_that_is_too_long_is_named_with_the_numbers(app: FastAPI) -> None:
    long = "cat " * 50
    found = error(post(app, "/v1/embeddings", input=["a", long]))
    assert found["param"] == "input[1]"
    assert "40 tokens, and the text has 52" in found["message"]
    response = post(app, "/v1/embeddings", input=["a", long], truncate_prompt_tokens=-1)
    assert response.json()["usage"]["prompt_tokens"] == 3 + 40


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input.1"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": [True]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [[1, "a"]]}, "input.0.1"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["a"] * (MAX_TEXTS + 1)}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [10**30]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 2**40}, "priority"),
    ],
)
def test_bad_bodies(app: FastAPI, body: dict[str, Any], param: str) -> None:
    assert str(error(post(app, "/v1/embeddings", **body))["param"]).startswith(param)


def test_half_a_surrogate_pair_is_an_error_of_the_client(app: FastAPI) -> None:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            headers = {"content-type": "application/json"}
            return await client.post("/v1/embeddings", content=rb'{"input": "\ud800"}', headers=headers)

    assert "not valid JSON" in error(asyncio.run(send()))["message"]


def test_null_is_as_good_as_leaving_out(app: FastAPI) -> None:
    optional = ("model", "user", "encoding_format", "dimensions", "normalize", "truncate_prompt_tokens", "priority")
    nulls = vectors(post(app, "/v1/embeddings", input="a cat", **dict.fromkeys(optional)))
    assert nulls == vectors(post(app, "/v1/embeddings", input="a cat"))
    best = post(app, "/v1/rerank", query="a", documents=["b"], top_n=None, return_documents=None).json()["results"]
    assert best[0]["document"] == {"text": "b"}


@pytest.mark.parametrize(("limit", "what"), [("request_timeout", "finished"), ("queue_timeout", "started")])
def test_a_request_that_takes_too_long_is_answered_503_and_recorded(limit: str, what: str) -> None:
    async def never(text: str, **options: Any) -> PoolingRequestOutput:
        await asyncio.sleep(10)
        raise AssertionError

    slow = make_app(SimpleNamespace(encode=never), ServerConfig(**{limit: 0.01}))  # type: ignore[arg-type]
    response = post(slow, "/v1/embeddings", input=["a", "b"])
    assert response.status_code == 503
    assert f"not {what} within 0.01 s; send fewer texts" in response.json()["error"]["message"]
    metrics = slow.state.server.metrics.render().decode()
    assert 'request_success_total{engine="0",finished_reason="error",model_name="tiny"} 1.0' in metrics


def test_a_request_waits_in_the_queue_until_its_first_vector() -> None:
    async def encode(text: str, **options: Any) -> PoolingRequestOutput:
        if text == "late":
            loop = asyncio.get_running_loop()
            loop.time = lambda: time.monotonic() + 200  # type: ignore[method-assign]  # It seems to have taken so long.
            await asyncio.sleep(0.01)
        return PoolingRequestOutput("0", text, [1], PoolingOutput(np.ones(1, np.float32)))

    for config, status in (
        (ServerConfig(queue_timeout=100), 200),
        (ServerConfig(queue_timeout=100, request_timeout=110), 503),
    ):
        app = make_app(SimpleNamespace(encode=encode), config)  # type: ignore[arg-type]
        assert post(app, "/v1/embeddings", input=["a", "late"]).status_code == status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a", "bad"]}),
        ("/v1/score", {"text_1": "a", "text_2": "bad"}),
        ("/v1/rerank", {"query": "a", "documents": ["b", "bad"]}),
    ],
)
def test_a_text_whose_numbers_are_not_finite_is_a_failed_computation(path: str, body: dict[str, Any]) -> None:
    async def encode(text: str, **options: Any) -> PoolingRequestOutput:
        error = "the embedding has values that are infinite" if text == "bad" else None
        return PoolingRequestOutput("0", text, [1], PoolingOutput(np.ones(1, np.float32)), error=error)

    failing = make_app(SimpleNamespace(encode=encode))  # type: ignore[arg-type]
    response = post(failing, path, **body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    assert "has values that are infinite" in response.json()["error"]["message"]
    metrics = failing.state.server.metrics.render().decode()
    assert 'request_success_total{engine="0",finished_reason="error",model_name="tiny"} 1.0' in metrics


def test_the_engine_hears_how_urgent_texts_are_and_whose_and_their_request_is_one() -> None:
    asked: list[Any] = []
    records: list[RequestRecord] = []

    async def encode(text: str, *, pooling_params: PoolingParams, **options: Any) -> PoolingRequestOutput:
        asked.append(options)
        times = RequestMetrics(first_scheduled_time=2.0 if text == "a" else 1.0)
        return PoolingRequestOutput(f"of {text}", text, [1], PoolingOutput(np.ones(1, np.float32)), metrics=times)

    noted = make_app(SimpleNamespace(encode=encode))  # type: ignore[arg-type]
    noted.state.server.tracer = SimpleNamespace(trace=records.append)
    assert post(noted, "/v1/embeddings", input=["a", "b"], priority=-3, user="u").status_code == 200
    assert asked == [{"priority": -3, "tenant": "127.0.0.1/u"}] * 2
    (record,) = records
    assert (record.request_id, record.first_scheduled_time, record.num_prompt_tokens) == ("of a", 1.0, 2)


def test_requests_are_counted(tiny_bert: Path) -> None:
    llm = AsyncLLM(str(tiny_bert), num_threads=1)
    app = make_app(llm)
    try:
        assert post(app, "/v1/embeddings", input=["a cat", "dog"]).status_code == 200
        assert post(app, "/v1/embeddings", input="cat " * 50).status_code == 400
    finally:
        llm.shutdown()
    metrics = app.state.server.metrics.render().decode()
    assert 'request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0' in metrics
    assert 'request_prompt_tokens_sum{engine="0",model_name="tiny"} 9.0' in metrics


def test_another_models_name_is_not_found(app: FastAPI) -> None:
    response = post(app, "/v1/embeddings", model="ada", input="a")
    assert response.status_code == 404
    assert "'tiny'" in response.json()["error"]["message"]


def test_scores(app: FastAPI) -> None:
    def scores(first: Any, second: Any) -> list[float]:
        body = post(app, "/v1/score", text_1=first, text_2=second).json()
        assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
        return [item["score"] for item in body["data"]]

    texts = ["a cat", "dog", "bird, too"]
    found = np.array(vectors(post(app, "/v1/embeddings", input=texts)))
    assert scores(texts[0], texts[1]) == pytest.approx([found[0] @ found[1]], abs=1e-5)
    assert scores(texts[0], texts[1:]) == pytest.approx(found[1:] @ found[0], abs=1e-5)
    assert scores(texts[:2], texts[1:]) == pytest.approx([found[0] @ found[1], found[1] @ found[2]], abs=1e-5)
    assert "2 texts to score against 3" in error(post(app, "/v1/score", text_1=texts[:2], text_2=texts))["message"]
    assert error(post(app, "/v1/score", text_1="cat " * 50, text_2="a"))["param"] == "text_1"
    assert error(post(app, "/v1/score", text_1="a", text_2=[]))["param"].startswith("text_2")


def test_rerank(app: FastAPI) -> None:
    documents = ["dog", {"text": "a cat"}, "bird, too", "a cat"]
    body = post(app, "/v1/rerank", query="a cat", documents=documents).json()
    results = body["results"]
    # Equal scores keep the documents' order.
    assert [result["index"] for result in results][:2] == [1, 3]
    assert results[0]["document"] == {"text": "a cat"}
    found = [result["relevance_score"] for result in results]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(1.0)
    assert body["usage"]["total_tokens"] > 0
    short = post(app, "/v1/rerank", query="a cat", documents=documents, top_n=1, return_documents=False).json()
    assert short["results"] == [{"index": 1, "relevance_score": found[0]}]
    assert len(post(app, "/v1/rerank", query="a cat", documents=documents, top_n=0).json()["results"]) == 4
    assert error(post(app, "/v1/rerank", query="a", documents=["a", "cat " * 50]))["param"] == "documents[1]"
    assert error(post(app, "/v1/rerank", query="a", documents=["a"], top_n=-1))["param"] == "top_n"
    assert error(post(app, "/v1/rerank", query="", documents=["a"]))["param"] == "query"


def test_a_model_that_generates_says_where_to_ask(tiny_llama: Path) -> None:
    llm = AsyncLLM(str(tiny_llama), num_blocks=64)
    app = make_app(llm)
    try:
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ):
            found = error(post(app, path, **body))
            assert found["param"] == "model"
            assert "generates text" in found["message"]
            assert "/v1/chat/completions" in found["message"]
    finally:
        llm.shutdown()


def test_the_schema_knows_the_answers(app: FastAPI) -> None:
    schema = app.openapi()
    for path, asked in (
        ("embeddings", {"input": ["a", "b"]}),
        ("score", {"text_1": "a", "text_2": ["a", "b"]}),
        ("rerank", {"query": "a", "documents": ["a", "b"]}),
    ):
        content = schema["paths"][f"/v1/{path}"]["post"]["responses"]["200"]["content"]["application/json"]
        assert set(content["schema"]["properties"]) == set(post(app, f"/v1/{path}", **asked).json())


def test_a_client_that_leaves_takes_its_texts_along() -> None:
    """The engine never answers; the client goes while it waits; admission and the texts are given back."""
    started = 0
    cancelled = 0

    async def never(text: str, **options: Any) -> PoolingRequestOutput:
        nonlocal started, cancelled
        started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        raise AssertionError

    async def leave() -> None:
        lonely = make_app(SimpleNamespace(encode=never))  # type: ignore[arg-type]
        body = json.dumps({"input": ["a"] * 300}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            while started < embeddings.MAX_TEXTS_IN_FLIGHT:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            "client": ("127.0.0.1", 1),
        }
        await lonely(scope, receive, send)
        assert lonely.state.server.admission.num_unfinished == 0

    asyncio.run(leave())
    assert started == cancelled == embeddings.MAX_TEXTS_IN_FLIGHT
