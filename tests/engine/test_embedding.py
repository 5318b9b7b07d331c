"""`LLM.embed`, `score` and `encode`: the vectors of transformers, and errors that name the number and the remedy."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.inside import worker_of
from tests.tiny_models import save_sentence_transformer, save_tiny_bert
from transformers import AutoModel

from quire import LLM, AsyncLLM, PoolingParams
from quire.core.embedding import PoolingRequestOutput
from quire.core.native import has_native_module
from quire.engine.local_engine import LocalEngine
from quire.engine.tokenizer import Tokenizer
from quire.errors import GenerationFailedError, InvalidRequestError
from quire.worker.encode_worker import EncodeWorker

TEXTS = ["a cat", "the cat, again", "x", "what is this?", "is it a cat or a dog that barks"]
QUIET: dict[str, Any] = {"use_tqdm": False}
IF_BUILT = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


@pytest.fixture(scope="module")
def llm(tiny_bert: Path) -> LLM:
    return LLM(str(tiny_bert), num_threads=1)


def oracle(model: str | Path, tokenizer: Tokenizer, text: str, *, kind: str = "mean") -> npt.NDArray[np.float32]:
    """transformers' hidden states, pooled by hand and normalized."""
    encoder = AutoModel.from_pretrained(model).eval()
    with torch.inference_mode():
        hidden = encoder(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].numpy()
    vector = hidden[0] if kind == "cls" else hidden.mean(0)
    found: npt.NDArray[np.float32] = vector / np.linalg.norm(vector)
    return found


def test_embeddings_are_transformers(llm: LLM, tiny_bert: Path) -> None:
    for text, output in zip(TEXTS, llm.embed(TEXTS, **QUIET), strict=True):
        expected = oracle(tiny_bert, llm.get_tokenizer(), text)
        np.testing.assert_allclose(output.outputs.embedding, expected, atol=1e-5)
        assert output.prompt == text


@pytest.mark.parametrize(("mode", "normalize"), [("cls_token", True), ("cls_token", False), ("mean_tokens", False)])
def test_the_checkpoints_way_of_pooling(mode: str, normalize: bool, tmp_path: Path) -> None:
    save_tiny_bert(tmp_path)
    save_sentence_transformer(tmp_path, mode=mode, normalize=normalize, max_tokens=40)
    with LLM(str(tmp_path), num_threads=1) as llm:
        found = np.array(llm.embed("a cat", **QUIET)[0].outputs.embedding)
        expected = oracle(tmp_path, llm.get_tokenizer(), "a cat", kind=mode.removesuffix("_token"))
        assert (abs(np.linalg.norm(found) - 1) < 1e-5) == normalize
        np.testing.assert_allclose(found / np.linalg.norm(found), expected, atol=1e-5)
        forced = llm.embed("a cat", pooling_params=PoolingParams(normalize=True), **QUIET)[0].outputs.embedding
        np.testing.assert_allclose(forced, expected, atol=1e-5)


@IF_BUILT
@pytest.mark.parametrize(("quantization", "least"), [("int8", 0.99), ("int4", 0.9)])
def test_rounded_weights_hardly_turn_the_vectors(quantization: Any, least: float, tmp_path: Path) -> None:
    save_tiny_bert(tmp_path, intermediate_size=64)
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=40)
    with LLM(str(tmp_path), quantization=quantization, num_threads=1) as llm:
        found = [output.outputs.embedding for output in llm.embed(TEXTS, **QUIET)]
        expected = [oracle(tmp_path, llm.get_tokenizer(), text) for text in TEXTS]
    cosines = np.sum(np.array(found) * np.array(expected), -1)
    assert (cosines > least).all()
    assert (cosines < 1 - 1e-7).any(), "nothing was rounded"


def test_a_vector_of_each_token(llm: LLM) -> None:
    output = llm.encode("a cat", PoolingParams(normalize=False), pooling_task="token_embed", **QUIET)[0]
    vectors = output.outputs.data
    assert vectors.shape == (len(output.prompt_token_ids), 32)
    mean = vectors.mean(0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), llm.embed("a cat", **QUIET)[0].outputs.embedding, atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_normalized_again(llm: LLM) -> None:
    whole = np.array(llm.embed("a cat", **QUIET)[0].outputs.embedding)
    short = llm.embed("a cat", pooling_params=PoolingParams(dimensions=8), **QUIET)[0].outputs.embedding
    np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)


def test_text_and_its_token_ids_are_one(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("a cat")
    outputs = llm.embed(["a cat", ids, {"prompt_token_ids": ids}], **QUIET)
    assert len({tuple(output.outputs.embedding) for output in outputs}) == 1


def test_a_text_that_is_too_long(llm: LLM) -> None:
    text = "cat " * 60
    with pytest.raises(InvalidRequestError, match=r"is 40 tokens, and the text has 62; .*truncate") as raised:
        llm.embed(["a", text], **QUIET)
    assert (raised.value.field, raised.value.value) == ("prompt", 62)
    for limit, length in ((-1, 40), (7, 7), (1, 1), (100, None)):
        params = PoolingParams(truncate_prompt_tokens=limit)
        if length is None:
            with pytest.raises(InvalidRequestError, match="the text has 62"):
                llm.embed(text, pooling_params=params, **QUIET)
            continue
        ids = llm.embed(text, pooling_params=params, **QUIET)[0].prompt_token_ids
        assert len(ids) == length
        # [CLS] begins what is left; [SEP] ends it as it ends a whole text.
        assert ids[0] == 2
        assert ids[-1] == (3 if length > 1 else 2)


def test_all_positions_can_be_asked_for(tiny_bert: Path) -> None:
    with LLM(str(tiny_bert), max_model_len=48, num_threads=1) as llm:
        assert len(llm.embed([[5] * 48], **QUIET)[0].outputs.embedding) == 32
    with pytest.raises(InvalidRequestError, match=r"49, but .* 48"):
        LLM(str(tiny_bert), max_model_len=49)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([[1, 64]], {}, "Token id 64 at position 1"),
        ([[True]], {}, "Token id True"),
        ([[]], {}, "no tokens"),
        ("a", {"dimensions": 33}, "dimensions is 33, but the model's vectors have 32"),
    ],
)
def test_bad_input(llm: LLM, prompt: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.embed(prompt, pooling_params=PoolingParams(**params), **QUIET)


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "classify"},
        {"normalize": 1},
        {"dimensions": 0},
        {"dimensions": True},
        {"dimensions": 2.5},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
    ],
)
def test_parameters_keep_their_rules(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        PoolingParams(**fields)
    assert raised.value.field == next(iter(fields))


def test_parameters_of_another_kind_are_refused_however_empty(tiny_bert: Path) -> None:
    nothing: Any = {}

    async def main() -> None:
        async with AsyncLLM(str(tiny_bert), num_threads=1) as llm:
            await llm.encode("a cat", nothing)

    with pytest.raises(InvalidRequestError, match=r"pooling_params must be PoolingParams, got \{\}"):
        asyncio.run(main())


def test_scores_are_cosines_of_the_pairs(llm: LLM) -> None:
    vectors = np.array([output.outputs.embedding for output in llm.embed(TEXTS[:4], **QUIET)])

    def scores(a: Any, b: Any) -> list[float]:
        return [output.outputs.score for output in llm.score(a, b, **QUIET)]

    assert scores(TEXTS[0], TEXTS[1]) == pytest.approx([vectors[0] @ vectors[1]], abs=1e-6)
    assert scores(TEXTS[0], TEXTS[1:4]) == pytest.approx(vectors[1:4] @ vectors[0], abs=1e-6)
    assert scores(TEXTS[0:2], TEXTS[2:4]) == pytest.approx([vectors[0] @ vectors[2], vectors[1] @ vectors[3]], abs=1e-6)
    assert scores(TEXTS[0], TEXTS[0])[0] == pytest.approx(1.0)
    with pytest.raises(InvalidRequestError, match=r"2 texts to score against 3"):
        llm.score(TEXTS[:2], TEXTS[:3])
    with pytest.raises(InvalidRequestError, match=r"1 texts to score against 0"):
        llm.score(TEXTS[0], [])


def test_each_model_says_what_it_is_for(llm: LLM, tiny_llama: Path) -> None:
    for ask in (lambda: llm.generate("a"), lambda: llm.chat([{"role": "user", "content": "a"}])):
        with pytest.raises(
            InvalidRequestError, match=r"makes embeddings and nothing else: .*LLM\.embed, .*/v1/embeddings"
        ):
            ask()
    with (
        LLM(str(tiny_llama), num_blocks=100) as decoder,
        pytest.raises(
            InvalidRequestError, match=r"generates text and nothing else: .*LLM\.generate, .*/v1/completions"
        ),
    ):
        decoder.embed("a")


def test_vectors_that_are_not_finite_are_an_error_of_their_text(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 a real model may overflow; here one text does."""
    with LLM(str(tiny_bert), num_threads=1, enforce_eager=True) as llm:
        worker = worker_of(llm)
        assert isinstance(worker, EncodeWorker)
        forward = worker._model.forward

        def overflow(batch: Any) -> Any:
            hidden = forward(batch)
            hidden[: batch.query_starts[1]] = float("inf")
            return hidden

        monkeypatch.setattr(worker, "_model", SimpleNamespace(forward=overflow, config=worker._model.config))
        bad, good = llm.encode(["a", "b"], **QUIET)
        assert bad.error is not None
        assert good.error is None
        with pytest.raises(GenerationFailedError, match=r"has no embedding: .* not numbers"):
            llm.embed("a", **QUIET)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_backend_is_bitwise_independent_of_company(dtype: str, tiny_bert: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(4, 60, length).tolist() for length in rng.integers(1, 40, 20)]
    config: dict[str, Any] = {"backend": "reference", "dtype": dtype, "num_threads": 1}

    def embed(texts: list[list[int]], **more: Any) -> list[list[float]]:
        with LLM(str(tiny_bert), **config, **more) as llm:
            return [output.outputs.embedding for output in llm.embed(texts, **QUIET)]

    together = embed(texts)
    assert embed(texts, max_num_batched_tokens=1) == together
    assert embed(texts, max_num_batched_tokens=50, num_steps_in_flight=2) == together
    assert embed(texts[::-1])[::-1] == together


def test_the_asynchronous_face(llm: LLM, tiny_bert: Path) -> None:
    async def ask() -> list[PoolingRequestOutput]:
        async with AsyncLLM(str(tiny_bert), num_threads=1) as engine:
            with pytest.raises(InvalidRequestError, match="the text has 62"):
                await engine.encode("cat " * 60)
            with pytest.raises(InvalidRequestError, match="makes embeddings"):
                await anext(engine.generate("a"))
            return await asyncio.gather(*(engine.encode(text) for text in TEXTS))

    for output, expected in zip(asyncio.run(ask()), llm.embed(TEXTS, **QUIET), strict=True):
        np.testing.assert_allclose(output.outputs.data, expected.outputs.embedding, atol=1e-5)


def test_cancelling_aborts_the_request(tiny_bert: Path) -> None:
    """The one who waits is cancelled while the engine holds still; nothing of the request is left then."""

    async def cancel() -> int:
        async with AsyncLLM(str(tiny_bert), num_threads=1) as engine:
            local = engine._connection
            assert isinstance(local, LocalEngine)
            client = local._engine.client
            may_step = threading.Event()
            step = client.step

            def held_step() -> Any:
                may_step.wait(60)
                return step()

            client.step = held_step  # type: ignore[method-assign]
            tasks = [asyncio.create_task(engine.encode([5] * 30)) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            may_step.set()
            await tasks[0]
            await engine.encode("the last")
            scheduler = client.engine.scheduler
            assert (len(scheduler.waiting), len(scheduler.running)) == (0, 0)
            return scheduler.num_prompt_tokens

    # One step may have been filled before the texts were dropped: 512 tokens.
    assert asyncio.run(cancel()) <= 30 + 512 + 10


PARAPHRASES = ("A man is eating food.", "A man is eating a piece of bread.")


@pytest.mark.real
@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=IF_BUILT), "torch", "reference"])
def test_minilm_against_transformers(minilm: str, backend: str) -> None:
    from quire.checkpoint.pull import pull

    long = "The scheduler of an inference engine decides which tokens to compute next. " * 14
    texts = [*PARAPHRASES, "Ünïcödé — naïve café 東京", "", long]
    with LLM(minilm, dtype="float32", backend=backend, num_threads=1) as llm:
        assert llm.info.max_model_len == 256
        for text, output in zip(texts, llm.embed(texts, **QUIET), strict=True):
            expected = oracle(pull("minilm"), llm.get_tokenizer(), text)
            assert np.dot(output.outputs.embedding, expected) >= 0.99999, text


@IF_BUILT
@pytest.mark.real
def test_minilm_in_8_bits(minilm: str) -> None:
    vectors = {}
    for quantization in ("none", "int8"):
        with LLM(minilm, quantization=quantization, num_threads=1) as llm:
            vectors[quantization] = np.array([output.outputs.embedding for output in llm.embed(PARAPHRASES, **QUIET)])
    assert (np.sum(vectors["none"] * vectors["int8"], -1) > 0.99).all()


@pytest.mark.real
def test_minilm_knows_what_is_alike(minilm: str) -> None:
    with LLM(minilm, num_threads=1) as llm:
        query = "How do I reset my password?"
        documents = ["I forgot my login credentials and need a new password.", "The recipe calls for two eggs.", query]
        paraphrase, unrelated, same = (output.outputs.score for output in llm.score(query, documents, **QUIET))
    assert same == pytest.approx(1.0, abs=1e-5)
    assert 0.4 < paraphrase < 0.9
    assert abs(unrelated) < 0.15
