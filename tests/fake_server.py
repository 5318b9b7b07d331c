"""A small OpenAI-compatible server for the tests of clients: it answers made-up words, or misbehaves as told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse


class FakeServer:
    """`plan` holds the behaviour of the next requests ("ok" when it is empty); `gap_s` is the time between streamed
    tokens, `delay_s` that before an answer, `retry_after` what a busy one says.

    `bodies` are the requests that came, `num_closed` those whose client left before the end.
    """

    def __init__(self, model: str, *, api_key: str | None = None) -> None:
        self.model = model
        self.max_model_len = 512
        self.plan: list[str] = []
        self.gap_s = 0.0
        self.delay_s = 0.0
        self.retry_after = "0"
        self.bodies: list[dict[str, Any]] = []
        self.num_closed = 0
        self.num_prompt_tokens = self.num_output_tokens = 0
        self._api_key = api_key
        config = uvicorn.Config(self._app(), port=0, log_level="error", timeout_keep_alive=5, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/models", self._models)
        app.add_api_route("/metrics", self._metrics)
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
            app.add_api_route(path, self._answer, methods=["POST"], response_model=None)
        return app

    async def _models(self, request: Request) -> Response:
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return _error(401, "a key is needed")
        card = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
        return JSONResponse({"object": "list", "data": [card]})

    async def _metrics(self) -> Response:
        counts = {
            "vllm:num_requests_running": 0,
            "vllm:prompt_tokens_total": self.num_prompt_tokens,
            "vllm:generation_tokens_total": self.num_output_tokens,
            "vllm:e2e_request_latency_seconds_count": len(self.bodies),
        }
        lines = [f'{name}{{engine="0"}} {value}' for name, value in counts.items()]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        behaviour = self.plan.pop(0) if self.plan else "ok"
        await asyncio.sleep(self.delay_s)
        if behaviour == "refuse":
            return _error(400, "this is refused")
        if behaviour in ("busy", "loading"):
            status = 429 if behaviour == "busy" else 503
            return JSONResponse({"error": {"message": behaviour}}, status, {"Retry-After": self.retry_after})
        if behaviour == "list":
            return JSONResponse([])
        if behaviour == "hang" and not body.get("stream"):
            await asyncio.sleep(60)
        if body.get("stream"):
            return StreamingResponse(self._events(body, behaviour), media_type="text/event-stream")
        return JSONResponse(self._whole(body, request.url.path), headers={"X-Request-Id": f"fake-{len(self.bodies)}"})

    def _whole(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        if path == "/v1/embeddings":
            return {"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}
        return {"id": "fake", "choices": [{"index": 0, "text": f"echo {body.get('prompt')}", "finish_reason": "stop"}]}

    async def _events(self, body: dict[str, Any], behaviour: str) -> AsyncIterator[str]:
        chat, num_tokens = "messages" in body, body["max_tokens"]
        num_prompt = len(body["messages"][-1]["content"]) if chat else len(body["prompt"])
        try:
            if chat:
                yield _event({"delta": {"role": "assistant", "content": ""}})
            for index in range(num_tokens):
                if index == 2 and behaviour != "ok":
                    async for event in _misbehave(behaviour):
                        yield event
                    return
                await asyncio.sleep(self.gap_s)
                text = f" w{index}"
                yield _event({"delta": {"content": text}} if chat else {"text": text})
            yield _event({"delta": {}, "finish_reason": "length"} if chat else {"text": "", "finish_reason": "length"})
            self.num_prompt_tokens += num_prompt
            self.num_output_tokens += num_tokens
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.num_closed += 1
            raise


async def _misbehave(behaviour: str) -> AsyncIterator[str]:
    if behaviour == "hang":
        await asyncio.sleep(60)
    elif behaviour == "cut":
        raise ConnectionAbortedError("cut by the test")
    elif behaviour == "garbage":
        yield "data: {not json\n\n"
    elif behaviour == "error_event":
        yield 'data: {"error": {"message": "the engine died"}}\n\n'


def _event(choice: dict[str, Any]) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'finish_reason': None, **choice}]})}\n\n"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status)
