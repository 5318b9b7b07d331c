"""From an engine's deltas to a caller's outputs."""

from __future__ import annotations

import pytest
from tests.engine.small_tokenizers import small_tokenizer

from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.core.sequence import FinishReason
from quire.core.wire import SampleDelta
from quire.engine.requests_in_progress import RequestsInProgress


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
