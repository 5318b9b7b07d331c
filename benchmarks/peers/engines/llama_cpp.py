"""llama.cpp: one build of it gives the library that llama-cpp-python's low-level functions call, and its HTTP server.

The bindings' own `Llama` class computes one request at a time; here many sequences go through one `llama_decode`, as in
llama.cpp's own batched examples, and a prefix that all prompts of a call share is computed once, copied to each sequence
and kept for the next call.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import (
    GEMMA,
    INT8_ACTIVATIONS,
    Environment,
    InstallError,
    Peer,
    Server,
    Variant,
)
from benchmarks.peers.engines.protocol import TokenIds, logprobs_of, serve

VERSION = "0.3.36"
MAX_BATCH = 2048
MIN_SHARED = 64
SLOTS = 8
"""Of the server. More of them were slower, and its default of unified slots much slower."""
LAST_GCC_TO_MEND = 12
"""GCC 12.2 drops the stores of the tile configuration, and the first prompt crashes."""
TILE_SOURCE = Path("vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp")
LOAD_CONFIGURATION = "_tile_loadconfig(&tc);"
Row = tuple[int, int, int, bool]
"""Token id, its position, its sequence, whether its logits are wanted."""


class LlamaCpp:
    def load(self, options: Mapping[str, Any]) -> dict[str, str]:
        self._lib = lib = import_module("llama_cpp")
        self._numpy = import_module("numpy")
        # It reports every graph it plans; the callback must outlive the library's use of it.
        self._silent = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._silent, None)
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(str(options["model"]).encode(), lib.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {options['model']}")
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._shape = (0, 0)
        self._shared: TokenIds = []
        self._batch = lib.llama_batch_init(MAX_BATCH, 0, 1)
        return {"llama-cpp-python": lib.__version__}

    def generate(self, prompts: list[TokenIds], num_tokens: int) -> list[TokenIds]:
        shared = common_prefix(prompts)
        first = 1 if shared else 0  # sequence 0 keeps the shared prefix
        self._open(len(prompts) + first, max(map(len, prompts)) + num_tokens)
        self._place_shared(shared, range(first, first + len(prompts)))
        rows = [
            (token_id, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts, first)
            for position, token_id in enumerate(prompt)
            if position >= len(shared)
        ]
        outputs = [[token_id] for token_id in self._best(rows)]
        for step in range(num_tokens - 1):
            rows = [
                (output[-1], len(prompt) + step, sequence, True)
                for sequence, (prompt, output) in enumerate(zip(prompts, outputs, strict=True), first)
            ]
            for output, token_id in zip(outputs, self._best(rows), strict=True):
                output.append(token_id)
        return outputs

    def logprobs(self, windows: list[TokenIds]) -> list[list[float]]:
        found = []
        for window in windows:
            self._open(1, len(window))
            self._forget(range(1))
            self._compute([(token_id, position, 0, True) for position, token_id in enumerate(window)])
            logits = self._numpy.stack([self._logits(row) for row in range(len(window) - 1)])
            found.append(logprobs_of(window[1:], logits))
        return found

    def _open(self, num_sequences: int, num_tokens: int) -> None:
        """A context for that many sequences of that many tokens; the one there is if it fits."""
        if self._shape[0] == num_sequences and self._shape[1] >= num_tokens:
            return
        lib = self._lib
        if self._context is not None:
            lib.llama_free(self._context)
        num_tokens = -(-num_tokens // 256) * 256
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = num_sequences * num_tokens, num_sequences
        params.n_batch = MAX_BATCH
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context for {num_sequences} sequences of {num_tokens} tokens")
        self._shape, self._shared = (num_sequences, num_tokens), []

    def _place_shared(self, shared: TokenIds, sequences: Iterable[int]) -> None:
        """The shared prefix in each of the sequences, and nothing else."""
        sequences = list(sequences)
        self._forget(sequences)
        if shared and shared != self._shared:
            self._forget([0])
            self._compute([(token_id, position, 0, False) for position, token_id in enumerate(shared)])
        if shared:
            memory = self._lib.llama_get_memory(self._context)
            for sequence in sequences:
                self._lib.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        self._shared = shared

    def _forget(self, sequences: Iterable[int]) -> None:
        memory = self._lib.llama_get_memory(self._context)
        for sequence in sequences:
            self._lib.llama_memory_seq_rm(memory, sequence, -1, -1)

    def _best(self, rows: Sequence[Row]) -> list[int]:
        """The most likely token after each row that wants logits."""
        best = []
        for start in range(0, len(rows), MAX_BATCH):
            part = rows[start : start + MAX_BATCH]
            self._compute(part)
            best += [int(self._logits(row).argmax()) for row, (*_, wanted) in enumerate(part) if wanted]
        return best

    def _compute(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token_id, position, sequence, wanted) in enumerate(rows):
            batch.token[index] = token_id
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        status = self._lib.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status}")

    def _logits(self, row: int) -> Any:
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        return self._numpy.ctypeslib.as_array(pointer, shape=(self._vocab_size,))


def common_prefix(prompts: Sequence[TokenIds]) -> TokenIds:
    """What all prompts begin with, if that is worth keeping and each goes on after it."""
    if len(prompts) < 2:
        return []
    equal = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    shared = [column[0] for column in equal]
    return shared if MIN_SHARED <= len(shared) < min(map(len, prompts)) else []


def install(environment: Environment) -> str:
    return build(environment, ["GGML_NATIVE=ON"], ["llama-server", "mtmd"], "this CPU")


def build(environment: Environment, options: Sequence[str], targets: Sequence[str], compiled_for: str) -> str:
    """llama.cpp as llama-cpp-python's source package has it, compiled with CMake's `options`; then the bindings without it."""
    source, folder = environment.folder / "source", environment.folder / "build"
    source.mkdir()
    environment.pip("install", "cmake<4", "ninja", "numpy")
    wanted = f"llama-cpp-python=={VERSION}"
    environment.pip("download", "--no-deps", "--no-binary", ":all:", wanted, "-d", str(source))
    (archive,) = source.glob("*.tar.gz")
    environment.run(["tar", "xzf", str(archive), "-C", str(source), "--strip-components=1"])
    compiler, mends_amx = find_compiler()
    options = [*options, "BUILD_SHARED_LIBS=ON", "CMAKE_BUILD_TYPE=Release"]
    options += [f"LLAMA_{name}=OFF" for name in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP")]
    options += ["LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF"]
    if mends_amx:
        mend_tile_configuration(source / TILE_SOURCE)
    tools = environment.folder / "bin"
    configure = [str(tools / "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    configure += ["-S", str(source / "vendor" / "llama.cpp"), "-B", str(folder)]
    environment.run(configure + [f"-D{option}" for option in options])
    environment.run([str(tools / "cmake"), "--build", str(folder), "--target", *targets])
    environment.pip("install", str(archive), env={"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"})
    mended = " (a barrier added before its tile configuration, whose stores this compiler drops)" if mends_amx else ""
    return f"compiled for {compiled_for} by {compiler}, with AMX where that has it{mended}"


def mend_tile_configuration(path: Path) -> None:
    """The compiler is told that the configuration is read."""
    text = path.read_text()
    if LOAD_CONFIGURATION not in text:
        raise InstallError(
            f"{path.name} no longer has {LOAD_CONFIGURATION}: see whether its AMX still has to be mended"
        )
    path.write_text(
        text.replace(LOAD_CONFIGURATION, f'asm volatile("" : : "r"(&tc) : "memory");\n    {LOAD_CONFIGURATION}')
    )


def find_compiler() -> tuple[str, bool]:
    """Its name and version, and whether it breaks the tiles' configuration."""
    text = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)\.\d+\.\d+", text)
    is_gcc = "Free Software Foundation" in text
    name = f"{'GCC' if is_gcc else 'Clang'} {version.group() if version else 'of unknown version'}"
    return name, is_gcc and (version is None or int(version.group(1)) <= LAST_GCC_TO_MEND)


def process_env(environment: Environment) -> dict[str, str]:
    return {"LLAMA_CPP_LIB_PATH": str(environment.folder / "build" / "bin")}


def server(environment: Environment, variant: Variant, weights: Path, port: int) -> Server:
    program = environment.folder / "build" / "bin" / "llama-server"
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(program), "-m", str(weights), "--host", "127.0.0.1", "--port", str(port), "-t", threads]
    return Server([*command, "-np", str(SLOTS), "-c", str(SLOTS * 1024), "--no-kv-unified"])


PEER = Peer(
    "llama_cpp",
    (
        Variant("llama.cpp BF16", 16, "gguf-bf16", "abcdef"),
        Variant("llama.cpp Q8_0", 8, "gguf-q8_0", "abcdef", max_perplexity_change=INT8_ACTIVATIONS),
        Variant("llama.cpp Q4_1", 4, "file", "abcdef", max_perplexity_change=INT8_ACTIVATIONS),
        Variant("llama.cpp Q4_K_M", 4, "file", "abcdef", models=(GEMMA,), max_perplexity_change=INT8_ACTIVATIONS),
    ),
    install,
    process_env,
    server,
)

if __name__ == "__main__":
    serve(LlamaCpp())
