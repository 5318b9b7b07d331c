"""/openapi.json is true: whatever fits it or breaks it is answered as it says, and never with a failure of the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.case import Case
from tests.server.neighbour import neighbour
from tests.server.running_server import RunningServer, running_server

from quire.server.routes import ROUTERS, management

OPERATIONS = sorted(
    (route.path.replace(":path}", "}"), method)  # type: ignore[attr-defined]
    for router in (*ROUTERS, management.router)
    for route in router.routes
    if getattr(route, "include_in_schema", False)
    for method in route.methods  # type: ignore[attr-defined]
)
NUM_EXAMPLES = int(os.environ.get("QUIRE_TEST_EXAMPLES", "6"))
load_all_checks()
RULES = CHECKS.get_by_names(
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)
KEY = "sesame"
LIMITS = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 16, "n": 4}
"""So that what is valid does not take for ever."""


@pytest.fixture(scope="module")
def server(tiny_llama: Any) -> Iterator[RunningServer]:
    flags = ("--served-model-name", "tiny", "--num-threads", "1", "--num-blocks", "512", "--enable-management")
    with running_server(str(tiny_llama), *flags, api_key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers={"x-api-key": KEY})


def shorten(case: Case) -> None:
    """Names the model that is there, and asks for little, where the case says anything about it."""
    body = case.body
    if isinstance(body, dict):
        if isinstance(body.get("model"), str) and len(body["model"]) % 4:
            body["model"] = "tiny"
        for name, limit in LIMITS.items():
            value = body.get(name)
            if isinstance(value, int) and value > limit:
                body[name] = limit
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None and "messages" in body:
            body["max_tokens"] = LIMITS["max_tokens"]


def fuzz(server: RunningServer, document: Any, path: str, method: str, mode: GenerationMode, num_examples: int) -> None:
    operation = document[path][method]
    if mode is GenerationMode.NEGATIVE and "requestBody" not in operation.definition.raw:
        # There is no wrong text in a path.
        return

    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        shorten(case)
        case.call_and_validate(headers={"x-api-key": KEY}, checks=RULES, timeout=120)

    check()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_document_is_true(server: RunningServer, document: Any, mode: GenerationMode) -> None:
    assert {(path, method.upper()) for path in document for method in document[path]} == set(OPERATIONS)
    with neighbour(server):
        for path, method in OPERATIONS:
            fuzz(server, document, path, method, mode, NUM_EXAMPLES)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_document_is_true_at_length(
    server: RunningServer, document: Any, path: str, method: str, mode: GenerationMode
) -> None:
    with neighbour(server):
        fuzz(server, document, path, method, mode, 200)
