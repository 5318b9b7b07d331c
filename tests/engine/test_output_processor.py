"""One request as its caller sees it: text, logprobs, ends and times, delta by delta."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.small_tokenizers import small_tokenizer

from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.core.sequence import FinishReason
from quire.core.step import SampleError, TokenLogprobs
from quire.core.wire import SampleDelta
from quire.engine.output_processor import RequestState

TOKENIZER = small_tokenizer("byte-level")
LEAD = 0xE2
"""The first byte of a character of three: the token with its id, for ids 0 to 255 are bytes in the order of their value."""


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def state(**fields: Any) -> RequestState:
    params = SamplingParams(max_tokens=50, **fields)
    request = Request(request_id="7", prompt_token_ids=ids("p"), sampling_params=params, arrival_time=1.0)
    return RequestState(request, TOKENIZER)


def delta(text: str, index: int = 0, **fields: Any) -> SampleDelta:
    return SampleDelta("7", index, ids(text), **fields)


def likely(text: str, *logprobs: float) -> TokenLogprobs:
    """The first is the chosen token's."""
    return TokenLogprobs(ids(text), list(logprobs), list(range(1, len(logprobs) + 1)))


def test_deltas_have_what_is_new_and_cumulative_outputs_everything() -> None:
    for kind in (OutputKind.DELTA, OutputKind.CUMULATIVE):
        running = state(output_kind=kind, logprobs=1)
        seen = []
        for letter in "abc":
            running.append(delta(letter, logprobs=[likely(letter + "x", -2.0, -0.5)]), 2.0)
            (sample,) = running.output({0}).outputs
            assert sample.logprobs is not None
            chosen = [next(iter(at)) for at in sample.logprobs]
            assert chosen == sample.token_ids
            seen.append((sample.text, TOKENIZER.decode(sample.token_ids), sample.cumulative_logprob))
        whole = ["a", "b", "c"] if kind is OutputKind.DELTA else ["a", "ab", "abc"]
        assert seen == [(text, text, logprob) for text, logprob in zip(whole, (-2.0, -4.0, -6.0), strict=True)]


def test_text_that_nobody_looked_at_before_the_end_is_whole() -> None:
    running = state(output_kind=OutputKind.FINAL_ONLY)
    for letter in "ab":
        running.append(delta(letter), 2.0)
    running.append(delta("c", finish_reason=FinishReason.LENGTH), 3.0)
    (sample,) = running.output({0}).outputs
    assert sample.text == "abc"


def test_only_deltas_leave_out_the_samples_that_did_not_change() -> None:
    for kind, indices in ((OutputKind.DELTA, [1]), (OutputKind.CUMULATIVE, [0, 1])):
        running = state(output_kind=kind, n=2)
        running.append(delta("a", 1), 2.0)
        assert [sample.index for sample in running.output({1}).outputs] == indices


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    running = state(prompt_logprobs=0)
    running.append(delta("a", prompt_logprobs=[likely("q", -1.5)]), 2.0)
    found = running.output({0}).prompt_logprobs
    assert found is not None
    first, second = found
    assert first is None
    assert second is not None
    assert second[ids("q")[0]].logprob == -1.5
    assert second[ids("q")[0]].decoded_token == "q"


def test_a_request_is_finished_with_its_last_sample() -> None:
    running = state(n=2, stop=["z"])
    assert running.append(delta("z", 1), 2.0) == "z"
    assert running.has_ended(1)
    assert not running.output({1}).finished
    assert running.append(delta("a", 0, finish_reason=FinishReason.STOP, stop_reason=9), 3.0) is None
    output = running.output({0})
    assert output.finished
    assert [(s.finish_reason, s.stop_reason) for s in output.outputs] == [("stop", 9), ("stop", "z")]
    assert output.metrics is not None
    assert output.metrics.finished_time == 3.0


def test_an_error_is_handed_out() -> None:
    running, error = state(), SampleError("not_finite", "No.")
    running.append(delta("", finish_reason=FinishReason.ERROR, error=error), 2.0)
    (sample,) = running.output({0}).outputs
    assert (sample.finish_reason, sample.error) == ("error", error)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
def test_half_a_character_that_completes_a_stop_string_in_the_end(reason: FinishReason) -> None:
    """Who aborts hears that, not that the text stopped by itself."""
    running = state(stop=["\ufffd"])
    running.append(SampleDelta("7", 0, [*ids("a"), LEAD], finish_reason=reason), 2.0)
    (sample,) = running.output({0}).outputs
    assert sample.text == "a"
    stopped = reason is not FinishReason.ABORT
    assert (sample.finish_reason, sample.stop_reason) == (("stop", "\ufffd") if stopped else ("abort", None))


def test_an_abort_releases_what_was_held_back_and_leaves_the_ended_alone() -> None:
    running = state(n=2, stop=["END"], output_kind=OutputKind.DELTA)
    running.append(delta("x", 0, finish_reason=FinishReason.LENGTH), 2.0)
    running.output({0})
    running.append(delta("a EN", 1), 2.0)
    (sample,) = running.output({1}).outputs
    assert sample.text == "a "
    aborted = running.abort()
    assert aborted.finished
    assert [(s.index, s.text, s.finish_reason) for s in aborted.outputs] == [(1, "EN", "abort")]
    assert aborted.metrics is not None
    assert aborted.metrics.finished_time is not None


def test_times_and_counts() -> None:
    running = state(n=2)
    running.append(delta("", 0, first_scheduled_time=1.25), 1.5)
    running.append(delta("a", 0, first_scheduled_time=1.25, num_cached_tokens=16), 2.0)
    running.append(delta("b", 1, first_scheduled_time=1.75, num_cached_tokens=32, num_preemptions=2), 3.0)
    running.append(delta("b", 1, num_cached_tokens=32, num_preemptions=2), 5.0)
    assert running.output({1}).num_cached_tokens == 16, "the others find what the first has computed"
    running.append(delta("a", 0, num_cached_tokens=16, num_preemptions=1), 9.0)
    output: RequestOutput = running.output({0, 1})
    metrics = output.metrics
    assert metrics is not None
    assert (metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time) == (1.0, 1.25, 2.0)
    assert (metrics.last_token_time, metrics.finished_time) == (9.0, None)
    assert metrics.token_gaps == [2.0, 7.0], "of each sample"
    assert metrics.num_preemptions == 2


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.FINAL_ONLY])
def test_tokens_alone_have_no_text(kind: OutputKind) -> None:
    running = state(detokenize=False, output_kind=kind)
    running.append(delta("ab", finish_reason=FinishReason.LENGTH), 2.0)
    (sample,) = running.output({0}).outputs
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("", ids("ab"), "length")


def test_an_output_names_its_prompt() -> None:
    params = SamplingParams(max_tokens=5)
    request = Request(request_id="7", prompt="p", prompt_token_ids=ids("p"), sampling_params=params)
    output = RequestState(request, TOKENIZER).output({0})
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("7", "p", ids("p"))
