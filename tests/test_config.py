"""A knob of the wrong kind is refused by name, and none is taken for its opposite."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, AsyncLLM
from quire.config import EngineConfig, ServerConfig
from quire.errors import InvalidRequestError
from quire.server.reasoning.registry import REASONING_STYLES
from quire.server.tools.registry import TOOL_FORMATS


@pytest.mark.parametrize(
    ("knob", "value", "wanted"),
    [
        ("enforce_eager", "no", "true or false"),
        ("preallocate_kv_cache", 1, "true or false"),
        ("enable_prefix_caching", None, "true or false"),
        ("memory_utilization", "0.5", "a number"),
        ("memory_utilization", True, "a number"),
        ("model", None, "text"),
        ("max_num_batched_tokens", None, "a whole number"),
        ("block_size", 16.0, "a whole number >= 1"),
        ("seed", "abc", "a whole number >= 0"),
        ("num_threads", 0, "a whole number >= 1"),
    ],
)
def test_an_engines_knob_of_another_kind(knob: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        EngineConfig(**{knob: value})
    assert str(refusal.value) == f"{knob} must be {wanted}, got {value!r}."
    assert refusal.value.field == knob


@pytest.mark.parametrize("knob", ["max_num_batched_tokens", "num_blocks", "max_model_len", "seed"])
def test_a_number_too_large_for_any_machine(knob: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=f"^{knob} must be at most 1000000000000000000; choose a smaller number.$"
    ):
        EngineConfig(**{knob: 10**400})


@pytest.mark.parametrize(
    ("knob", "value", "wanted"),
    [
        ("enable_management", "no", "true or false, got 'no'"),
        ("port", None, "a whole number, got None"),
        ("metrics_namespace", None, "text, got None"),
        ("allowed_host", ("https://llm.example",), "a name such as llm.example, got 'https://llm.example'"),
        ("allowed_host", ("",), "a name such as llm.example, got ''"),
        ("allowed_origin", ("app.example",), "* or an origin such as https://app.example, got 'app.example'"),
        (
            "allowed_origin",
            ("https://app.example", "https://app.example/"),
            "* or an origin such as https://app.example, got 'https://app.example/'",
        ),
        ("drain_timeout", "30", "a number, got '30'"),
        ("queue_timeout", "30", "seconds >= 0, got '30'"),
        ("api_key", "secret", "a tuple of texts"),
        ("api_key", ("secret", 5), "a tuple of texts"),
        ("allowed_host", None, "a tuple of texts"),
    ],
)
def test_a_servers_knob_of_another_kind(knob: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        ServerConfig(**{"api_key": ("key",), knob: value})
    assert str(refusal.value) == f"{knob} must be {wanted}."
    assert refusal.value.field == knob


def test_an_empty_host_is_no_way_to_ask_for_every_network() -> None:
    with pytest.raises(InvalidRequestError, match=r"host is empty; .* 0\.0\.0\.0"):
        ServerConfig(host="")


@pytest.mark.parametrize(
    ("knob", "names"), [("tool_call_parser", set(TOOL_FORMATS)), ("reasoning_parser", set(REASONING_STYLES))]
)
def test_a_parsers_help_names_all_there_are(knob: str, names: set[str]) -> None:
    """Written out, for the registries load more than a command's help should."""
    (help_line,) = (field.metadata["help"] for field in fields(ServerConfig) if field.name == knob)
    assert {"none", *names} <= set(re.findall(r"\w+", help_line))


def test_an_empty_name_is_no_name_of_a_model() -> None:
    with pytest.raises(InvalidRequestError, match="served_model_name is empty; give"):
        ServerConfig(served_model_name="")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gpu_memory_utilization", "did you mean memory_utilization?"), ("tensor_parallel_size", "leave it out.")],
)
def test_an_argument_that_is_no_knob(name: str, meant: str) -> None:
    for kind in (LLM, AsyncLLM):
        with pytest.raises(TypeError, match=f"^{name} is no argument of LLM or AsyncLLM.*; {re.escape(meant)}$"):
            kind("smollm2", **{name: 1})


def test_a_path_names_a_model() -> None:
    path: Any = Path("models") / "llama"
    assert EngineConfig(model=path).model == str(path)
