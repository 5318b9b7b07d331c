"""Real servers, one of a kind for the whole session: on the null executor, a tiny model, the real SmolLM2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.running_server import RunningServer, running_server


@pytest.fixture(scope="session")
def null_server(smollm2: str) -> Iterator[RunningServer]:
    """SmolLM2's tokenizer and template before an engine that computes nothing: ids in [1000, 5093), at full speed."""
    with running_server(smollm2, "--executor", "null", "--num-blocks", "4096") as server:
        yield server


TINY_FLAGS = ("--served-model-name", "tiny", "--num-threads", "1", "--num-blocks", "1024")


@pytest.fixture(scope="session")
def tiny_model(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random two-layer Llama: one token a byte, a context of 2048, a chat template without tools."""
    directory = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_llama, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return str(directory)


@pytest.fixture(scope="session")
def tiny_server(tiny_model: str) -> Iterator[RunningServer]:
    """The tiny model, served as "tiny"."""
    with running_server(tiny_model, *TINY_FLAGS) as server:
        yield server


THINKING_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}<think>\n"


@pytest.fixture(scope="session")
def thinking_server(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The tiny model, taken for one that thinks: its prompts open the reasoning."""
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING_TEMPLATE)
    flags = ("--reasoning-parser", "think", "--chat-template", str(template), "--trust-request-chat-template")
    with running_server(tiny_model, *TINY_FLAGS, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def real_server(smollm2: str) -> Iterator[RunningServer]:
    """The real SmolLM2."""
    with running_server(smollm2, "--num-blocks", "1024") as server:
        yield server
