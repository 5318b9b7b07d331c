"""Every rule of SamplingParams and BeamSearchParams: what is taken, as what it is stored, and what is refused how."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from quire.core.sampling_params import ALL_LOGPROBS, BeamSearchParams, OutputKind, SamplingParams
from quire.errors import InvalidRequestError

NOT_NUMBERS = [math.nan, math.inf, -math.inf, float("1e400"), 10**400, True, "1", None, [1.0], 1j]
NOT_WHOLE = [1.0, 1.5, math.nan, True, "1", [1], 2**70]
NOT_BOOLS = [0, 1, "true", None, 1.0]
NOT_TOKEN_IDS = [True, 1.0, -1, "1", None, math.nan, 2**64, 10**5000]

OUT_OF_RANGE: list[tuple[str, list[Any], str]] = [
    ("n", [0, -1, 16385, None], "from 1 to 16384"),
    ("presence_penalty", [-2.01, 2.01], "[-2, 2]"),
    ("frequency_penalty", [-2.01, 2.01], "[-2, 2]"),
    ("repetition_penalty", [0, 0.0, -1.0], "above 0"),
    ("temperature", [-0.1, 2.0001, -1], "[0, 2]"),
    ("top_p", [0, 0.0, -0.5, 1.0001], "(0, 1]"),
    ("top_k", [-2, None], "at least 0"),
    ("min_p", [-0.1, 1.1], "[0, 1]"),
    ("seed", [2**64, -(2**63) - 1], "64 bits"),
    ("stop", ["", [""], ["a", ""], [1], ["a", None], 3, {"a"}, b"a"], "string"),
    ("stop_token_ids", [1, "1", {1}], "list of token ids"),
    ("max_tokens", [0, -1], "at least 1"),
    ("min_tokens", [-1, None], "at least 0"),
    ("logprobs", [-2], "-1 for the whole vocabulary"),
    ("prompt_logprobs", [-2], "-1 for the whole vocabulary"),
    ("output_kind", ["delta", None, 1, np.array([1, 2])], "OutputKind.DELTA"),
    ("logit_bias", [[], "a", 3, [(1, 2.0)]], "mapping"),
    ("logit_bias", [{1: 1.0, "1": 2.0}], "token 1 twice"),
    ("allowed_token_ids", [[], ()], "at least one token id"),
    ("allowed_token_ids", [1, "1"], "list of token ids"),
    ("bad_words", ["", [""], [1], {"a"}], "word"),
    ("bad_words_token_ids", [[1], [[]], [None], "a"], "token ids"),
]
REAL_FIELDS = ["presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p"]
WHOLE_FIELDS = ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]
BOOL_FIELDS = [
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
]

CASES = [
    *[(field, value, rule) for field, values, rule in OUT_OF_RANGE for value in values],
    *[(field, value, "number") for field in REAL_FIELDS for value in NOT_NUMBERS],
    *[(field, value, "whole number") for field in WHOLE_FIELDS for value in NOT_WHOLE],
    *[(field, value, "True or False") for field in BOOL_FIELDS for value in NOT_BOOLS],
    *[(field, [3, value], "token id") for field in ("stop_token_ids", "allowed_token_ids") for value in NOT_TOKEN_IDS],
    *[("bad_words_token_ids", [[3, value]], "token id") for value in NOT_TOKEN_IDS],
    *[("logit_bias", {value: 1.0}, "token id") for value in [*NOT_TOKEN_IDS, "-1", "1.0", "²", " 1", "", "9" * 30, "9" * 5000] if value != "1"],
    *[("logit_bias", {3: value}, "bias") for value in NOT_NUMBERS],
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "rule"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_a_broken_rule_names_field_value_rule_and_remedy(field: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{field: value})
    message = str(refusal.value)
    assert refusal.value.field == field
    assert refusal.value.value is value
    assert message.startswith(f"{field} is ")
    assert rule in message
    assert "; " in message
    assert message.endswith(".")
    assert len(message) < 400


def test_a_number_too_long_to_read_is_told_by_its_length() -> None:
    for exponent in (128, 200, 20_000):
        with pytest.raises(InvalidRequestError, match=f"n is a whole number of {exponent + 1} bits, but"):
            SamplingParams(n=2**exponent)


def test_rules_between_fields() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens is 9, but it must be at most max_tokens, which is 8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    with pytest.raises(InvalidRequestError, match="temperature 0"):
        SamplingParams(n=2, temperature=0.0)
    with pytest.raises(InvalidRequestError, match="detokenize=True"):
        SamplingParams(stop=["a"], detokenize=False)
    assert SamplingParams(min_tokens=8, max_tokens=8).min_tokens == 8
    assert SamplingParams(min_tokens=10**6, max_tokens=None).max_tokens is None
    assert SamplingParams(stop_token_ids=[5], detokenize=False).stop_token_ids == (5,)


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("stop", "ab", ("ab",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", None, ()),
        ("stop_token_ids", [1, 2], (1, 2)),
        ("stop_token_ids", None, ()),
        ("allowed_token_ids", [7], (7,)),
        ("allowed_token_ids", [7, 3, 7, 3], (7, 3)),
        ("bad_words", ["x y"], ("x y",)),
        ("bad_words_token_ids", [[1, 2], (3,)], ((1, 2), (3,))),
        ("seed", -1, None),
        ("seed", 0, 0),
        ("seed", -2, -2),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("top_k", -1, 0),
        ("top_k", 10**9, 10**9),
        ("logprobs", -1, ALL_LOGPROBS),
        ("logprobs", 0, 0),
        ("temperature", 2, 2.0),
        ("temperature", np.float32(0.5), 0.5),
        ("top_k", np.int64(3), 3),
        ("stop_token_ids", [np.int32(3)], (3,)),
        ("min_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("repetition_penalty", 1e-9, 1e-9),
        ("logit_bias", {"12": 1, 3: -1000, 4: 1e9}, {12: 1.0, 3: -100.0, 4: 100.0}),
        ("logit_bias", {}, None),
        ("n", 16384, 16384),
        ("max_tokens", None, None),
    ],
)
def test_accepted_shapes_and_their_stored_form(field: str, given: Any, stored: Any) -> None:
    value = getattr(SamplingParams(**{field: given}), field)
    assert value == stored
    assert type(value) is type(stored)


def test_many_token_ids_are_looked_at_together() -> None:
    """One by one, the million that a request may allow took more than half a second of the event loop."""
    ids = (5, 0, 2**63 - 1)
    assert SamplingParams(stop_token_ids=ids).stop_token_ids is ids


@pytest.mark.parametrize("temperature", [0, 0.0, 9.9e-6])
def test_greedy_turns_truncation_off(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=5, min_p=0.1)
    assert params.greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert not SamplingParams(temperature=1e-5).greedy
    with pytest.raises(InvalidRequestError, match="top_p"):
        SamplingParams(temperature=0, top_p=7)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stop_token_ids": [99, 100]}, "stop_token_ids"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"bad_words_token_ids": [[1, 100]]}, "bad_words_token_ids"),
    ],
)
def test_token_ids_beyond_the_vocabulary(fields: dict[str, Any], named: str) -> None:
    params = SamplingParams(**fields)
    params.check_vocabulary(101)
    with pytest.raises(InvalidRequestError, match=rf"{named} has token id 100, .* 0 to 99; remove") as refusal:
        params.check_vocabulary(100)
    assert (refusal.value.field, refusal.value.value) == (named, 100)


FULL = SamplingParams(
    n=2, presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=1.25, temperature=0.7, top_p=0.9, top_k=-1,
    min_p=0.1, seed=2**64 - 1, stop=["a", "é"], stop_token_ids=[1], ignore_eos=True, max_tokens=None, min_tokens=3,
    logprobs=-1, prompt_logprobs=0, skip_special_tokens=False, spaces_between_special_tokens=False,
    include_stop_str_in_output=True, output_kind=OutputKind.DELTA, logit_bias={"7": 500, 2: -0.5},
    allowed_token_ids=[2, 7], bad_words=["x"], bad_words_token_ids=[[3, 4], [5]],
)  # fmt: skip


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0), FULL], ids=["default", "greedy", "full"]
)
def test_the_wire_changes_nothing(params: SamplingParams) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert decoded == params
    for field in SamplingParams.__struct_fields__:
        assert type(getattr(decoded, field)) is type(getattr(params, field)), field


def test_the_wire_checks_the_rules_again() -> None:
    raw = msgspec.msgpack.encode({"temperature": 3.0})
    with pytest.raises(msgspec.ValidationError, match=r"temperature is 3\.0"):
        msgspec.msgpack.decode(raw, type=SamplingParams)
    with pytest.raises(InvalidRequestError, match="top_k"):
        msgspec.structs.replace(SamplingParams(), top_k=-5)


@pytest.mark.parametrize(
    ("field", "values", "rule"),
    [
        ("beam_width", [0, 16385, *NOT_WHOLE], "whole number"),
        ("max_tokens", [0, None, *NOT_WHOLE], "whole number"),
        ("ignore_eos", NOT_BOOLS, "True or False"),
        ("temperature", [-1, 0.5, 1, *NOT_NUMBERS], "but it must be 0; beams are ranked by the model's own logprobs"),
        ("length_penalty", [-11, 400, *NOT_NUMBERS], "number"),
    ],
)
def test_beam_search_rules(field: str, values: list[Any], rule: str) -> None:
    good: dict[str, Any] = {"beam_width": 4, "max_tokens": 8}
    for value in values:
        with pytest.raises(InvalidRequestError) as refusal:
            BeamSearchParams(**{**good, field: value})
        assert str(refusal.value).startswith(f"{field} is ")
        assert rule in str(refusal.value)
    params = BeamSearchParams(**good, temperature=0, length_penalty=-2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=BeamSearchParams) == params


def test_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import quire.core.sampling_params"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
