"""What generation_config.json adds, and what it says in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.checkpoint.generation_config import GenerationConfig, read_generation_config


def read(path: Path, **content: object) -> GenerationConfig:
    path.write_text(json.dumps(content))
    return read_generation_config(path, vocab_size=320)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "generation_config.json"


def test_there_may_be_none(path: Path) -> None:
    assert read_generation_config(path, 320) == GenerationConfig((), ())


@pytest.mark.parametrize("beyond", [320, 2**70])
def test_an_end_that_the_model_has_no_logit_for_is_left_out(path: Path, beyond: int) -> None:
    found = read(path, eos_token_id=[2, beyond])
    assert found.eos_token_ids == (2,)
    assert found.notes == (f"{path}: eos_token_id {beyond} is left out: the model's vocabulary has 320 tokens.",)


def test_sampling_defaults_that_requests_do_not_get_are_named(path: Path) -> None:
    found = read(path, do_sample=True, temperature=0.6, top_p=0.9, top_k=20, min_p=0, repetition_penalty=1)
    assert found.notes == (
        f"{path}: temperature 0.6, top_p 0.9, top_k 20 left unused; send them with the requests that are to have them.",
    )


def test_defaults_that_are_every_request_s_are_not_named(path: Path) -> None:
    assert read(path, temperature=1.0, top_p=1, top_k=0, repetition_penalty=None, max_length=20).notes == ()
