"""The control tower runs where torch is not installed: a process that refuses torch imports and tests all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.core.native import has_native_module

ROOT = Path(__file__).parent.parent

REFUSE_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r} (refused)", name=name)
        return None

sys.meta_path.insert(0, NoTorch())
"""

IMPORT_CONTROL = """
import importlib, pkgutil
import quire
for folder in ("core", "host", "checkpoint", "plan", "cache", "scheduler", "engine", "bench", "cli"):
    package = importlib.import_module(f"quire.{folder}")
    for module in pkgutil.walk_packages(package.__path__, f"quire.{folder}."):
        importlib.import_module(module.name)
import quire.worker.executor, quire.worker.null_executor
assert "torch" not in sys.modules
"""

RUN_LEAN = """
import quire.engine.llm, quire.worker.uniproc_executor, quire.worker.uniproc_encode_executor
import quire.kernels.cpu_ops, quire.attention.cpu_backend, quire.attention.cpu_encoder
loaded = {"torch", "jinja2", "llguidance", "tqdm", "fastapi", "pydantic"} & set(sys.modules)
assert not loaded, f"an engine that starts loads {loaded}"
"""

RUN_TESTS = """
import pytest
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not nightly and not real", "tests/cache", "tests/scheduler", "tests/plan"]))
"""


RUN_ENGINE = """
from quire.config import EngineConfig
from quire.core.sampling_params import SamplingParams
from quire.engine.launch import launch

engine = launch(EngineConfig(model={model!r}, num_blocks=100), "null")
for text in ("one", "two and more"):
    engine.client.add_request(engine.inputs.process(text, SamplingParams(n=2, max_tokens=20, ignore_eos=True)))
finished = []
while engine.client.has_unfinished:
    finished += [output for output in engine.client.step() if output.finished]
assert [len(sample.token_ids) for output in finished for sample in output.outputs] == [20] * 4
"""


RUN_ENCODER = """
from quire.config import EngineConfig
from quire.core.embedding import PoolingParams
from quire.engine.launch import launch

engine = launch(EngineConfig(model={model!r}), "null")
for text in ("a cat", "a dog and a cat"):
    engine.client.add_request(engine.inputs.process_embedding(text, PoolingParams()))
outputs = []
while engine.client.has_unfinished:
    outputs += engine.client.step()
assert [output.outputs.data.shape for output in outputs] == [(16,)] * 2
"""


RUN_NATIVE_MODEL = """
import logging
logging.disable(logging.INFO)
from quire import LLM, SamplingParams

llm = LLM({model!r}, backend="cpu", dtype={dtype!r}, num_blocks=100)
params = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=1, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=8, max_tokens=12, ignore_eos=True, presence_penalty=0.5),
]
outputs = llm.generate(["one"] * 3, params, use_tqdm=False)
print([output.outputs[0].token_ids for output in outputs])
"""


RUN_NATIVE_ENCODER = """
import logging
logging.disable(logging.INFO)
from quire import LLM
from quire.core.embedding import PoolingParams

llm = LLM({model!r}, backend="cpu", quantization={quantization!r})
texts = ["a cat", "a dog and a cat " * 4]
print([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])
params = [PoolingParams(normalize=False), PoolingParams(task="token_embed")]
print([output.outputs.data.tolist() for output in llm.encode(texts, params, use_tqdm=False)])
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return run(REFUSE_TORCH + code)


def test_control_imports() -> None:
    done = run_without_torch(IMPORT_CONTROL)
    assert done.returncode == 0, done.stderr


def test_an_engine_that_starts_loads_only_what_the_first_token_needs() -> None:
    done = run_without_torch(RUN_LEAN)
    assert done.returncode == 0, done.stderr


def test_control_passes_its_tests() -> None:
    done = run_without_torch(RUN_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_whole_engine_runs_on_the_null_executor(tiny_llama: Path) -> None:
    done = run_without_torch(RUN_ENGINE.format(model=str(tiny_llama)))
    assert done.returncode == 0, done.stderr


def test_an_encoder_runs_on_the_null_executor_too(tiny_bert: Path) -> None:
    done = run_without_torch(RUN_ENCODER.format(model=str(tiny_bert)))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(
    ("fixture", "dtype"), [("tiny_llama", "float32"), ("tiny_llama", "bfloat16"), ("smollm2", "auto")]
)
def test_the_native_backend_runs_a_model(fixture: str, dtype: str, request: pytest.FixtureRequest) -> None:
    code = RUN_NATIVE_MODEL.format(model=str(request.getfixturevalue(fixture)), dtype=dtype)
    done = run_without_torch(code)
    assert done.returncode == 0, done.stderr
    # Beside torch, the same tokens.
    assert run("import torch" + code).stdout == done.stdout != ""


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(("fixture", "quantization"), [("tiny_bert", "none"), ("minilm", "none"), ("minilm", "int8")])
def test_the_native_backend_runs_an_encoder(fixture: str, quantization: str, request: pytest.FixtureRequest) -> None:
    code = RUN_NATIVE_ENCODER.format(model=str(request.getfixturevalue(fixture)), quantization=quantization)
    done = run_without_torch(code)
    assert done.returncode == 0, done.stderr
    assert run("import torch" + code).stdout == done.stdout != ""
