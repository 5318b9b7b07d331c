"""What a sequence takes from its request."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.sequence_group import make_sequence

EOS = 2


def request(**params: Any) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=[5, 6],
        sampling_params=SamplingParams(**params),
        eos_token_ids=[EOS],
        max_num_tokens=9,
        seed=11,
        priority=-3,
        arrival_time=4.5,
        cache_salt="salt",
        tenant="someone",
    )


@pytest.mark.parametrize(
    ("params", "stops"),
    [
        ({}, {EOS}),
        ({"ignore_eos": True}, set()),
        ({"stop_token_ids": [7]}, {EOS, 7}),
        ({"stop_token_ids": [7], "ignore_eos": True}, {7}),
        # A grammar's end is the end of text, and it has no other.
        ({"ignore_eos": True, "structured_outputs": StructuredOutputs(choice=("a",))}, {EOS}),
    ],
)
def test_what_ends_it(params: dict[str, Any], stops: set[int]) -> None:
    assert make_sequence(request(**params), 0).stop_token_ids == stops


def test_where_it_stands_and_whom_it_is_charged_to() -> None:
    sequence = make_sequence(request(), 1, index=2, seed=12)
    assert (sequence.priority, sequence.arrival_time, sequence.tenant) == (-3, 4.5, "someone")
    assert (sequence.cache_salt, sequence.seed, sequence.index) == ("salt", 12, 2)
    assert (sequence.num_prompt_tokens, sequence.max_num_tokens) == (2, 9)
    assert make_sequence(request(), 1).seed == 11


def test_only_the_first_sample_wants_prompt_logprobs() -> None:
    """Another would compute the whole prompt again for them, and find no cached prefix."""
    first, second = (make_sequence(request(n=2, prompt_logprobs=1), index, index=index) for index in (0, 1))
    assert first.sampling_params.prompt_logprobs == 1
    assert second.sampling_params.prompt_logprobs is None


def test_its_tokens_are_its_own() -> None:
    own = request()
    make_sequence(own, 0).token_ids.append(1)
    assert own.prompt_token_ids == [5, 6]
