"""From an engine's deltas to a caller's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.small_tokenizers import small_tokenizer

from quire.core.embedding import EmbeddingDelta, EmbeddingRequest, PoolingParams, PoolingRequestOutput, Vectors
from quire.core.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.core.sequence import FinishReason
from quire.core.step import SampleError
from quire.core.wire import BeamDelta, SampleDelta
from quire.engine.requests_in_progress import RequestsInProgress
from quire.errors import InvalidRequestError


def request(kind: OutputKind) -> Request:
    return Request(
        request_id="7",
        prompt=None,
        prompt_token_ids=[0],
        sampling_params=SamplingParams(n=2, stop=["z"], max_tokens=20, output_kind=kind),
        eos_token_ids=[],
        max_num_tokens=21,
        seed=0,
        arrival_time=0.0,
    )


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.CUMULATIVE])
def test_what_comes_for_a_sample_that_has_ended_is_nobodys(kind: OutputKind) -> None:
    """The engine goes on until it hears of a stop string; the other sample's outputs are not touched by that."""
    tokenizer = small_tokenizer("byte-level")
    a, b, stop = (tokenizer.encode(text, add_special_tokens=False)[0] for text in "abz")
    running = RequestsInProgress(tokenizer)
    running.add(request(kind))
    digest = running.digest([SampleDelta("7", 0, [a]), SampleDelta("7", 1, [a])])
    assert digest.stops == []
    digest = running.digest([SampleDelta("7", 0, [stop]), SampleDelta("7", 1, [b])])
    assert digest.stops == [("7", 0, "z")]
    assert running.digest([SampleDelta("7", 0, [b])]).outputs == []
    late = [SampleDelta("7", 0, [b], finish_reason=FinishReason.STOP, stop_reason="z"), SampleDelta("7", 1, [a])]
    (output,) = running.digest(late).outputs
    assert isinstance(output, RequestOutput)
    assert [(s.index, s.text) for s in output.outputs][-1] == (1, "a" if kind is OutputKind.DELTA else "aba")
    if kind is OutputKind.DELTA:
        assert len(output.outputs) == 1
    else:
        first = output.outputs[0]
        assert (first.text, first.finish_reason, first.token_ids) == ("a", "stop", [a, stop])
    (output,) = running.digest([SampleDelta("7", 1, [a], finish_reason=FinishReason.LENGTH)]).outputs
    assert isinstance(output, RequestOutput)
    assert output.finished
    assert len(running) == 0


def test_who_wants_the_end_only_hears_nothing_before() -> None:
    tokenizer = small_tokenizer("byte-level")
    running = RequestsInProgress(tokenizer)
    running.add(request(OutputKind.FINAL_ONLY))
    a, b = (tokenizer.encode(text, add_special_tokens=False)[0] for text in "ab")
    assert running.digest([SampleDelta("7", index, [a]) for index in (0, 1)]).outputs == []
    assert running.digest([SampleDelta("7", 1, [b], finish_reason=FinishReason.LENGTH)]).outputs == []
    (output,) = running.digest([SampleDelta("7", 0, [a], finish_reason=FinishReason.LENGTH)]).outputs
    assert isinstance(output, RequestOutput)
    assert output.finished
    assert [sample.text for sample in output.outputs] == ["aa", "ab"]


def embedding_request(request_id: str) -> EmbeddingRequest:
    return EmbeddingRequest(request_id=request_id, prompt_token_ids=[0, 1], pooling_params=PoolingParams())


def test_a_stop_string_in_the_last_token_is_no_news_to_an_engine_that_ended_the_sample() -> None:
    tokenizer = small_tokenizer("byte-level")
    running = RequestsInProgress(tokenizer)
    running.add(request(OutputKind.DELTA))
    last = tokenizer.encode("z", add_special_tokens=False)
    digest = running.digest([SampleDelta("7", 0, last, finish_reason=FinishReason.LENGTH)])
    assert digest.stops == []
    (output,) = digest.outputs
    assert isinstance(output, RequestOutput)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "z")


def test_what_comes_for_who_left_is_nobodys() -> None:
    running = RequestsInProgress(small_tokenizer("byte-level"))
    running.add(request(OutputKind.DELTA))
    running.add(embedding_request("8"))
    assert len(running) == 2
    for request_id in "78":
        with pytest.raises(InvalidRequestError, match="already running"):
            running.check_new(request_id)
        running.drop(request_id)
        running.drop(request_id)
        running.check_new(request_id)
        assert running.abort(request_id) is None
    assert len(running) == 0
    late = [SampleDelta("7", 0, [97]), BeamDelta("7", []), EmbeddingDelta("8", Vectors(b"\0" * 4, 1))]
    assert running.digest(late).outputs == []


def test_an_abort_ends_a_request_and_forgets_it() -> None:
    running = RequestsInProgress(small_tokenizer("byte-level"))
    running.add(request(OutputKind.FINAL_ONLY))
    running.add(embedding_request("8"))
    output, pooled = running.abort("7"), running.abort("8")
    assert isinstance(output, RequestOutput)
    assert (output.finished, [sample.finish_reason for sample in output.outputs]) == (True, ["abort", "abort"])
    assert isinstance(pooled, PoolingRequestOutput)
    assert (pooled.request_id, pooled.error, pooled.prompt_token_ids) == ("8", "it was aborted", [0, 1])
    assert len(running) == 0


def test_an_embedding_comes_whole_and_once() -> None:
    running = RequestsInProgress(small_tokenizer("byte-level"))
    running.add(embedding_request("8"))
    delta = EmbeddingDelta("8", Vectors(np.array([1, 2], "<f4").tobytes(), 1), first_scheduled_time=3.0)
    (output,) = running.digest([delta, delta]).outputs
    assert isinstance(output, PoolingRequestOutput)
    assert output.outputs.data.tolist() == [1, 2]
    assert output.metrics.first_scheduled_time == 3.0
    assert len(running) == 0


def test_a_beam_search_ends_with_its_hypotheses() -> None:
    tokenizer = small_tokenizer("byte-level")
    running = RequestsInProgress(tokenizer)
    running.add(request(OutputKind.FINAL_ONLY))
    a, b = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", "b"))
    error = SampleError("not_finite", "No.")
    delta = BeamDelta("7", [(a, -1.0, FinishReason.STOP), (b, -2.0, FinishReason.LENGTH)], error)
    sequences = [
        BeamSearchSequence([0, *a], -1.0, "a", "stop"),
        BeamSearchSequence([0, *b], -2.0, "b", "length"),
    ]
    assert running.digest([delta, delta]).outputs == [("7", BeamSearchOutput(sequences, error))]
    assert len(running) == 0
