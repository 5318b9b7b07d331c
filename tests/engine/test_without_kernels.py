"""An installation whose native kernels were not built, or cannot be loaded, computes with torch and says what is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import quire
from quire.core.native import has_native_module
from quire.plan.backend import WITHOUT_NATIVE

GENERATE = """
import logging, sys
from quire import LLM, SamplingParams
from quire.errors import QuireError

logging.basicConfig(stream=sys.stdout, level=logging.INFO)
model, backend = sys.argv[1:]
try:
    llm = LLM(model, backend=backend, seed=7)
except QuireError as error:
    print("refused:", error)
    raise SystemExit
every = [
    SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(temperature=0.9, top_p=0.9, top_k=40, max_tokens=5, ignore_eos=True, logprobs=2),
]
outputs = llm.generate([[1, 2, 3], [4, 5]], every, use_tqdm=False)
print("lengths:", [len(output.outputs[0].token_ids) for output in outputs])
"""


def installation(folder: Path, native_module: bytes | None) -> Path:
    """The package without its kernels, or with `native_module` in their place."""
    package = folder / "quire"
    shutil.copytree(Path(quire.__file__).parent, package, ignore=shutil.ignore_patterns("_native*", "__pycache__"))
    if native_module is not None:
        (package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(native_module)
    return folder


def generate(where: Path, model: Path, backend: str) -> str:
    """Without site: the editable installation's finder would come first."""
    path = os.pathsep.join([str(where), *dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])])
    done = subprocess.run(
        [sys.executable, "-S", "-c", GENERATE, str(model), backend],
        env={**os.environ, "PYTHONPATH": path},
        cwd=where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_not_built(tmp_path: Path, tiny_llama: Path) -> None:
    said = generate(installation(tmp_path, None), tiny_llama, "auto")
    assert "lengths: [5, 5]" in said
    assert WITHOUT_NATIVE in said


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_cannot_be_loaded(tmp_path: Path, tiny_llama: Path) -> None:
    """As built for another system. The remedy that is named is one."""
    where = installation(tmp_path, b"no module at all")
    refused = generate(where, tiny_llama, "auto")
    assert "refused: The native kernels cannot be loaded" in refused
    assert "choose backend torch" in refused
    assert "lengths: [5, 5]" in generate(where, tiny_llama, "torch")
