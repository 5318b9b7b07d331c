"""Only messages of this version come through; everything else is refused without being read further."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.wire import AbortRequest, AddRequest, FromEngine, SampleDelta, StepOutputs, ToEngine
from quire.engine.frames import VERSION_BYTE, BadFrameError, Frames

TO_ENGINE: Frames[ToEngine] = Frames(ToEngine)
FROM_ENGINE: Frames[FromEngine] = Frames(FromEngine)


def test_messages_survive_the_way() -> None:
    request = Request(request_id="7", prompt_token_ids=[1, 2], sampling_params=SamplingParams(stop=["x"], seed=3))
    for message in (AddRequest(2, request), AbortRequest(2, "7")):
        assert TO_ENGINE.decode(TO_ENGINE.encode(message)) == message
    outputs = StepOutputs([SampleDelta("7", 0, [5], num_cached_tokens=16)])
    assert FROM_ENGINE.decode(FROM_ENGINE.encode(outputs)) == outputs


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        pickle.dumps({"a": 1}),
        VERSION_BYTE,
        VERSION_BYTE + b"\xc1",
        VERSION_BYTE + msgspec.msgpack.encode({"type": "Unknown"}),
        VERSION_BYTE + msgspec.msgpack.encode({"type": "AbortRequest", "client": 2, "request_id": 7}),
        VERSION_BYTE + b"\x91" * 100_000,
        VERSION_BYTE + b"\x82\xa4type\xacAbortRequest\xa1x" + b"\x91" * 100_000,
        TO_ENGINE.encode(AbortRequest(2, "seven")).replace(b"seven", b"\xff\xfeven"),
        bytes([VERSION_BYTE[0] + 1]) + TO_ENGINE.encode(AbortRequest(2, "7"))[1:],
    ],
)
def test_other_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(BadFrameError):
        TO_ENGINE.decode(frame)


def test_a_message_that_breaks_its_own_rules_is_refused() -> None:
    request = Request(request_id="7", prompt_token_ids=[1], sampling_params=SamplingParams(top_p=0.5))
    frame = TO_ENGINE.encode(AddRequest(0, request))
    forged = frame.replace(msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(1.5))
    assert forged != frame
    with pytest.raises(BadFrameError, match="top_p"):
        TO_ENGINE.decode(forged)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_clear_refusal(data: bytes) -> None:
    for frame in (data, VERSION_BYTE + data):
        try:
            message = TO_ENGINE.decode(frame)
        except BadFrameError:
            continue
        assert TO_ENGINE.decode(TO_ENGINE.encode(message)) == message
