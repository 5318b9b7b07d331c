"""One run: make the engines ready, check them, and measure case after case."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.peers.cases import CASES, Case, Figures, Sizes
from benchmarks.peers.contender import Contender, one_line
from benchmarks.peers.engines import (
    llama_cpp,
    llama_cpp_avx2,
    onnxruntime_genai,
    openvino,
    quire,
    transformers,
    vllm,
)
from benchmarks.peers.engines.peer import GEMMA, SMOLLM2, Peer, Variant
from benchmarks.peers.interleave import Interleaved, Measure
from benchmarks.peers.machine import describe, measure_limits
from benchmarks.peers.prepare import Setup
from benchmarks.peers.quality import Quality, Reference, check_quality, read_reference
from benchmarks.peers.record import Record
from benchmarks.peers.roofline import BYTES_A_WEIGHT, Roofline, weight_bytes
from benchmarks.peers.serving import RATE_SECONDS, Load, RunningServer, first_token_through_server, start_server
from benchmarks.peers.text import Text, fetch_text, read_text

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.pull import pull

PEERS = (
    vllm.PEER,
    openvino.PEER,
    llama_cpp.PEER,
    llama_cpp_avx2.PEER,
    onnxruntime_genai.PEER,
    transformers.PEER,
)
REFERENCES = {SMOLLM2: (transformers.PEER, transformers.REFERENCE), GEMMA: (quire.PEER, quire.REFERENCE)}
"""Float32 of the same weights: what greedy tokens and perplexities are held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`command` is what a reader types to repeat the run. `perplexity_tokens` is 0 where nothing is to be checked."""

    command: str
    cache: Path
    output: Path
    model: str
    engines: list[str]
    cases: str
    num_rounds: int
    sizes: Sizes
    quantizations: list[str]
    max_rate: bool
    perplexity_tokens: int


def wanted_variants(
    model: str, engines: Sequence[str], quantizations: Sequence[str], cases: str
) -> tuple[list[tuple[Peer, Variant]], dict[str, str]]:
    """Those of the model that can run one of the cases and whose name holds one of the words (all without words; one that
    is held to an instruction set only where a word holds that), and the reason for each peer that has weights of other
    models only."""
    ours = {variant.name: variant for variant in (*quire.PEER.variants, *map(quire.quantized, quantizations))}
    everything = [(quire.PEER, variant) for variant in ours.values()]
    everything += [(peer, variant) for peer in PEERS for variant in peer.variants]
    words = [word.lower() for word in engines]
    asked = [pair for pair in everything if _is_asked(pair[1], words)]
    of_model = [pair for pair in asked if model in pair[1].models]
    found = [pair for pair in of_model if set(pair[1].cases) & set(cases)]
    peers = {peer.name for peer, _ in of_model}
    return found, {peer.name: f"no {model} in its format" for peer, _ in asked if peer.name not in peers}


def _is_asked(variant: Variant, words: Sequence[str]) -> bool:
    if variant.instruction_set is not None and not any(variant.instruction_set in word for word in words):
        return False
    return not words or any(word in variant.name.lower() for word in words)


def run(options: Options) -> bool:
    """Whether anything was measured."""
    text_path = fetch_text(options.cache)
    text = read_text(text_path, options.model)
    setup = Setup(options.cache, options.model)
    wanted, unconverted = wanted_variants(options.model, options.engines, options.quantizations, options.cases)
    for name, reason in unconverted.items():
        print(f"{name} is left out: {reason}", flush=True)
    contenders, absent = setup.contenders(wanted)
    record = begin_record(options, unconverted | absent)
    try:
        if options.perplexity_tokens:
            reference = try_reference(setup, text, options.perplexity_tokens, record)
            check_quality(reference, contenders, text, options.perplexity_tokens, record)
            record.write()
        note_engines(contenders, record)
        for letter in options.cases:
            run_case(CASES[letter], options, contenders, text, text_path, record)
            note_engines(contenders, record)  # Their versions are known once they have run.
            record.write()
    finally:
        for contender in contenders:
            contender.stop()
    print(f"results: {options.output}", flush=True)
    return bool(record.runs)


def begin_record(options: Options, absent: dict[str, str]) -> Record:
    model = stored_config(options.model)
    classes = [*BYTES_A_WEIGHT, 4]
    print("measuring how fast this machine reads and multiplies", flush=True)
    limits = measure_limits({bits: weight_bytes(model, bits) for bits in classes})
    print(f"bandwidth by class {_short(limits.bandwidth)} GB/s, products {_short(limits.matmul)} G/s", flush=True)
    rooflines = {str(bits): Roofline(model, bits, limits).figures(options.sizes) for bits in classes}
    settings = {
        "command": options.command,
        "model": options.model,
        "reference": REFERENCES[options.model][1].name,
        "rounds": options.num_rounds,
        "cases": options.cases,
        "sizes": asdict(options.sizes),
        "perplexity_tokens": options.perplexity_tokens,
        "rotated": True,
        "awake": True,
        "rate_seconds": RATE_SECONDS,
    }
    return Record(options.output, describe(), settings, asdict(limits), rooflines, absent=absent)


def stored_config(model: str) -> ModelConfig:
    """With the bytes of the tensors as they lie in the file: quire may keep them wider, a roofline does not."""
    with GGUFFile(pull(model)) as file:
        num_bytes = sum(tensor.num_bytes for tensor in file.tensors.values())
    return replace(open_checkpoint(model).config, quantized_bytes=num_bytes)


def _short(rates: object) -> str:
    assert isinstance(rates, dict)
    return ", ".join(f"{name}: {rate / 1e9:,.1f}" for name, rate in rates.items())


def note_engines(contenders: Sequence[Contender], record: Record) -> None:
    for contender in contenders:
        record.engines[contender.name] = {
            "peer": contender.peer.name,
            "bits": contender.variant.bits,
            "instruction_set": contender.variant.instruction_set,
            "max_perplexity_change": contender.variant.max_perplexity_change,
            "running_options": contender.variant.running_options,
            "versions": contender.versions,
            "installed": contender.how_installed,
        }


def try_reference(setup: Setup, text: Text, num_tokens: int, record: Record) -> Reference | None:
    """None if it cannot be had here: then perplexities stand without what they are held against."""
    peer, variant = REFERENCES[setup.model]
    try:
        reference = read_reference(setup.contender(peer, variant), text, num_tokens, setup.cache)
    except Exception as error:
        print(f"quality: {variant.name}, which others are held against: {one_line(error)}", flush=True)
        record.skip("quality", variant.name, one_line(error))
        return None
    equal = [len(tokens) for tokens in reference.tokens]
    record.quality[variant.name] = asdict(Quality(reference.perplexity, 0.0, equal, reference.tokens[0]))
    return reference


def run_case(
    case: Case, options: Options, contenders: Sequence[Contender], text: Text, text_path: Path, record: Record
) -> None:
    if case.run is not None:
        Interleaved(case, ask_worker(case, options.sizes, text), record).run(contenders, options.num_rounds)
        return
    for contender in contenders:
        contender.stop()
    if case.letter == "e":
        Interleaved(case, start_process(options.sizes, text), record).run(contenders, options.num_rounds)
    else:
        serve(case, options, contenders, Load(options.model, text_path, options.sizes), record)


def ask_worker(case: Case, sizes: Sizes, text: Text) -> Measure:
    def measure(contender: Contender, number: int, limit_s: float) -> Figures:
        deadline = time.perf_counter() + limit_s

        def generate(prompts: list[list[int]], num_tokens: int) -> float:
            return contender.generate(prompts, num_tokens, max(1.0, deadline - time.perf_counter()))[0]

        assert case.run is not None
        return case.run(generate, text, sizes, f"{case.letter} {number}")

    return measure


def start_process(sizes: Sizes, text: Text) -> Measure:
    """From the start of a worker's process to its first token, and its memory; then the same of its server."""

    def measure(contender: Contender, number: int, limit_s: float) -> Figures:
        (prompt,) = text.pieces([sizes.start_prompt], f"e {number}")
        process = contender.start(contender.variant)
        try:
            process.ask({"op": "generate", "prompts": [prompt], "num_tokens": 1}, limit_s)
            figures = {"first_token_s": time.perf_counter() - process.start_time}
            figures["peak_memory_mb"] = process.peak_memory() / 1e6
        finally:
            process.stop()
        if "f" in contender.variant.cases:
            figures["served_first_token_s"] = first_token_through_server(contender, prompt)
        return figures

    return measure


def serve(case: Case, options: Options, contenders: Sequence[Contender], load: Load, record: Record) -> None:
    """Each server is started once and frozen between its turns."""
    servers: dict[str, RunningServer] = {}

    def measure(contender: Contender, number: int, _: float) -> Figures:
        if contender.name not in servers:
            servers[contender.name] = start_server(contender, contender.variant.running)
        return on_server(contender, lambda server: load.figures(server, number))

    def highest_rate(contender: Contender, _: int, __: float) -> Figures:
        return on_server(contender, lambda server: {"max_rate": load.highest_rate(server, contender.name)})

    def on_server(contender: Contender, work: Callable[[RunningServer], Figures]) -> Figures:
        server = servers[contender.name]
        try:
            return work(server)
        except BaseException:
            servers.pop(contender.name).process.stop()
            raise
        finally:
            server.process.freeze()

    try:
        Interleaved(case, measure, record).run(contenders, options.num_rounds)
        if options.max_rate:
            running = [contender for contender in contenders if contender.name in servers]
            Interleaved(case, highest_rate, record, first_round=1).run(running, 1)
    finally:
        for server in servers.values():
            server.process.stop()
