"""Embeddings from a real server process, as the official client asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from tests.server.running_server import RunningServer, running_server

PARAPHRASES = ["How do I reset my password?", "I forgot my login credentials and need a new password."]
UNRELATED = "The recipe calls for two eggs."


@pytest.fixture(scope="module")
def server(tiny_bert: Path) -> Iterator[RunningServer]:
    flags = ("--task", "embed", "--served-model-name", "tiny", "--num-threads", "1")
    with running_server(str(tiny_bert), *flags) as server:
        yield server


def test_the_openai_client_gets_the_same_both_ways(server: RunningServer) -> None:
    texts = ["a cat", "dog", "a cat"]
    # The client asks for base64 unless told otherwise.
    answer = server.client().embeddings.create(model="tiny", input=texts)
    as_floats = server.client().embeddings.create(model="tiny", input=texts, encoding_format="float")
    assert [item.embedding for item in answer.data] == [item.embedding for item in as_floats.data]
    assert answer.data[0].embedding == answer.data[2].embedding
    assert answer.usage.prompt_tokens == 4 + 5 + 4


def test_many_at_once_from_the_asynchronous_client(server: RunningServer) -> None:
    async def ask() -> list[openai.types.CreateEmbeddingResponse]:
        async with server.async_client() as client:
            return await asyncio.gather(
                *(client.embeddings.create(model="tiny", input=["a" * i, "b" * i], dimensions=7) for i in range(1, 30))
            )

    answers = asyncio.run(ask())
    assert {len(item.embedding) for answer in answers for item in answer.data} == {7}
    assert len({tuple(item.embedding) for answer in answers for item in answer.data}) == 58


def test_errors_are_the_clients(server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match=r"maximum context length is 40 tokens, and the text has 52"):
        server.client().embeddings.create(model="tiny", input="cat " * 50)
    with pytest.raises(openai.NotFoundError, match="no model 'ada'"):
        server.client().embeddings.create(model="ada", input="a")


@pytest.mark.real
def test_minilm_ranks_what_is_alike_first(minilm: str) -> None:
    with running_server(minilm, "--task", "embed", "--num-threads", "1") as server:
        vectors = [
            np.array(item.embedding)
            for item in server.client().embeddings.create(model=minilm, input=[*PARAPHRASES, UNRELATED]).data
        ]
        documents = [UNRELATED, {"text": PARAPHRASES[1]}]
        ranked = server.http.post("/v1/rerank", json={"query": PARAPHRASES[0], "documents": documents}).json()
        scores = server.http.post("/v1/score", json={"text_1": PARAPHRASES[0], "text_2": PARAPHRASES[1]}).json()
    assert [result["index"] for result in ranked["results"]] == [1, 0]
    assert ranked["results"][0]["document"]["text"] == PARAPHRASES[1]
    assert scores["data"][0]["score"] == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)
    assert 0.4 < vectors[0] @ vectors[1] < 0.9
    assert abs(vectors[0] @ vectors[2]) < 0.15
