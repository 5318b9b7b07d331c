"""The engine of an encoder, on an executor that needs no model: what Engine promises, it promises too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.config import EngineConfig
from quire.core.embedding import EmbeddingRequest, EncodePlan, PoolingParams, PoolingRequestOutput
from quire.engine.encode_engine import EncodeEngine
from quire.engine.engine_client import EngineClient
from quire.engine.launch import LaunchedEngine, launch
from quire.engine.stats import collect_stats
from quire.errors import EngineDeadError, InvalidRequestError, UnsupportedModelError


@pytest.fixture(params=[1, 2])
def launched(request: pytest.FixtureRequest, tiny_bert: Path) -> LaunchedEngine:
    config = EngineConfig(model=str(tiny_bert), max_num_batched_tokens=32, num_steps_in_flight=request.param)
    return launch(config, "null")


def texts(launched: LaunchedEngine, *prompts: str, **params: Any) -> list[EmbeddingRequest]:
    return [launched.inputs.process_embedding(prompt, PoolingParams(**params)) for prompt in prompts]


def run(client: EngineClient) -> list[PoolingRequestOutput]:
    outputs = []
    while client.has_unfinished:
        outputs += [output for output in client.step() if isinstance(output, PoolingRequestOutput)]
    return outputs


def test_every_text_gets_its_vector(launched: LaunchedEngine) -> None:
    requests = texts(launched, "a cat", "a dog barks at a cat", "a cat", "dog")
    for request in requests:
        launched.client.add_request(request)
    outputs = {output.request_id: output for output in run(launched.client)}
    first, _, equal, other = (outputs[request.request_id].outputs.data for request in requests)
    assert np.array_equal(first, equal)
    assert not np.array_equal(first, other)
    assert np.linalg.norm(first) == pytest.approx(1.0)
    assert all(output.metrics.first_scheduled_time is not None for output in outputs.values())


def test_an_aborted_request_is_handed_back_and_never_answered(launched: LaunchedEngine) -> None:
    requests = texts(launched, *["a text that takes most of the budget of one step"] * 6, truncate_prompt_tokens=30)
    for request in requests:
        launched.client.add_request(request)
    outputs = [output for output in launched.client.step() if isinstance(output, PoolingRequestOutput)]
    done = {output.request_id for output in outputs}
    aborted = [request.request_id for request in requests if request.request_id not in done][:3]
    for request_id in aborted:
        output = launched.client.abort(request_id)
        assert isinstance(output, PoolingRequestOutput)
        assert output.error == "it was aborted"
        assert launched.client.abort(request_id) is None
    done |= {output.request_id for output in run(launched.client)}
    assert done == {request.request_id for request in requests} - set(aborted)


def test_an_id_in_use_is_refused(launched: LaunchedEngine) -> None:
    request = texts(launched, "a")[0]
    launched.client.add_request(request)
    with pytest.raises(InvalidRequestError, match="already running"):
        launched.client.add_request(request)
    assert len(run(launched.client)) == 1


def test_a_failed_step_kills_the_engine_with_its_reason(
    launched: LaunchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = launched.client.engine
    assert isinstance(engine, EncodeEngine)

    def fail(plan: EncodePlan) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(engine.steps.executor, "submit", fail)
    request = texts(launched, "a")[0]
    launched.client.add_request(request)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="a step failed with MemoryError: no room"):
            launched.client.step()
    with pytest.raises(EngineDeadError):
        engine.add_request(request)


def test_those_who_watch_see_steps_and_texts(launched: LaunchedEngine) -> None:
    engine = launched.client.engine
    engine.view.set_watching(1, True)
    for request in texts(launched, "cat" * 9, "cat", "cat"):
        launched.client.add_request(request)
    waiting = engine.view.take(now=1.0)
    assert waiting is not None
    assert waiting.layout is not None
    assert waiting.layout.num_blocks == 0
    assert [lane.status for lane in waiting.lanes] == ["waiting"] * 3
    run(launched.client)
    done = engine.view.take(now=1e9)
    assert done is not None
    assert sum(step.num_prefill_tokens for step in done.steps) == 27 + 3 + 3
    assert done.lanes == []
    stats = collect_stats(engine)
    assert stats.num_prompt_tokens == stats.step_tokens.total == 33
    assert (stats.num_blocks, stats.kv_cache_usage, stats.num_generation_tokens) == (0, 0.0, 0)


def test_a_busy_encoder_shows_itself_in_each_step(launched: LaunchedEngine) -> None:
    engine, shown = launched.client.engine, []
    engine.view.while_computing = lambda: shown.append(engine.steps.num_steps)
    for request in texts(
        launched, *["a text that takes most of the budget of one step"] * 6, truncate_prompt_tokens=30
    ):
        launched.client.add_request(request)
    run(launched.client)
    assert shown == list(range(6))


def test_what_was_decided(launched: LaunchedEngine) -> None:
    config = launched.config
    assert config.task == "embed"
    assert config.worker.max_model_len == 40  # sentence_bert_config.json, though there are 48 positions
    assert config.kv_cache.groups == ()
    assert config.kv_cache_line.startswith("No KV cache")
    assert not config.scheduler.enable_chunked_prefill


def test_a_model_of_another_task_is_refused(tiny_bert: Path, tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"task is generate.*BertModel, which can only embed"):
        launch(EngineConfig(model=str(tiny_bert), task="generate"), "null")
    with pytest.raises(UnsupportedModelError, match=r"task is embed.*LlamaForCausalLM, which can only generate"):
        launch(EngineConfig(model=str(tiny_llama), task="embed"), "null")
