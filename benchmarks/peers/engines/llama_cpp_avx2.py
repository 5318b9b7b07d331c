"""llama.cpp compiled for AVX2 and nothing later, in an environment of its own: what quire's AVX2 path is compared with."""

from __future__ import annotations

from benchmarks.peers.engines.llama_cpp import LlamaCpp, build, process_env
from benchmarks.peers.engines.peer import INT8_ACTIVATIONS, Environment, Peer, Variant
from benchmarks.peers.engines.protocol import serve

OPTIONS = [f"GGML_{name}=OFF" for name in ("NATIVE", "AVX512", "AVX_VNNI")]
OPTIONS += [f"GGML_{name}=ON" for name in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")]


def install(environment: Environment) -> str:
    return build(environment, OPTIONS, ["llama"], "AVX2 without AVX-512")


PEER = Peer(
    "llama_cpp_avx2",
    (
        Variant(
            "llama.cpp Q4_1 avx2",
            4,
            "file",
            "ab",
            instruction_set="avx2",
            max_perplexity_change=INT8_ACTIVATIONS,
        ),
    ),
    install,
    process_env,
)

if __name__ == "__main__":
    serve(LlamaCpp())
