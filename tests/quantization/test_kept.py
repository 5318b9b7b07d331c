"""Packed weights that were kept give the same bits, and whatever is wrong with them is made again."""

from __future__ import annotations

import inspect
import logging
import os
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import quire
from quire import LLM, SamplingParams
from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quire.checkpoint.packed_file import END
from quire.core.native import has_native_module
from quire.core.quantization import Rounding
from quire.kernels.dtype import DType
from quire.kernels.panels import round_to_panels
from quire.kernels.select import select_ops
from quire.models.registry import DECODERS, load_model
from quire.models.rotated_heads import rotated_heads
from quire.quantization import kept
from quire.quantization.few_bits import Rounded
from quire.quantization.kept import MADE_BY

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

KINDS = [("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int4")]
READ = "Weights were read packed from"
ANEW = "Weights are packed anew"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, logger="quire")
    return tmp_path / "cache" / "packed"


def logprobs(model: Path | str, dtype: str = "float32", quantization: str = "int8", packed_cache: str = "on") -> Any:
    """Of each token of a prompt and the one after it, bit for bit."""
    config = {"dtype": dtype, "quantization": quantization, "packed_cache": packed_cache}
    with LLM(str(model), backend="cpu", num_blocks=20, num_threads=1, **config) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3, prompt_logprobs=3)
        output = llm.generate([list(range(60, 90))], params, use_tqdm=False)[0]
        return output.prompt_logprobs, output.outputs[0].logprobs


def only_file(cache: Path) -> Path:
    [path] = cache.iterdir()
    return path


@pytest.mark.parametrize(("dtype", "quantization"), KINDS)
def test_the_bits_are_those_of_fresh_weights(
    dtype: str, quantization: str, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = logprobs(tiny_llama, dtype, quantization, "off")
    assert logprobs(tiny_llama, dtype, quantization) == fresh
    assert READ not in caplog.text
    assert logprobs(tiny_llama, dtype, quantization) == fresh
    assert READ in caplog.text


@pytest.mark.real
@pytest.mark.parametrize(("dtype", "quantization"), [("bfloat16", "stored"), ("bfloat16", "none")])
def test_the_bits_of_a_file_of_few_bits(
    dtype: str, quantization: str, smollm2: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as own_cache:
        own_cache.delenv("QUIRE_CACHE")
        path = open_checkpoint(smollm2).weight_files[0]
    fresh = logprobs(path, dtype, quantization, "off")
    assert logprobs(path, dtype, quantization) == fresh
    assert logprobs(path, dtype, quantization) == fresh
    assert READ in caplog.text


def truncate(path: Path, num_bytes: int) -> None:
    os.truncate(path, path.stat().st_size + num_bytes if num_bytes < 0 else num_bytes)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: truncate(path, 0),
    "a few bytes": lambda path: truncate(path, 10),
    "the first half": lambda path: truncate(path, path.stat().st_size // 2),
    "without its last byte": lambda path: truncate(path, -1),
    "first byte flipped": lambda path: flip(path, 0),
    "a byte in the middle flipped": lambda path: flip(path, path.stat().st_size // 3),
    "a byte of the index flipped": lambda path: flip(path, -200),
    "last byte flipped": lambda path: flip(path, -1),
    "a page of zeros": lambda path: path.write_bytes(b"\0" * 4096),
    "a folder": lambda path: (path.unlink(), path.mkdir())[0],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_packed_again(
    damage: str, cache: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = logprobs(tiny_llama)
    DAMAGES[damage](only_file(cache))
    caplog.clear()
    assert logprobs(tiny_llama) == fresh
    assert ANEW in caplog.text
    assert READ not in caplog.text


def test_after_damage_a_later_start_reads_again(
    cache: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = logprobs(tiny_llama)
    flip(only_file(cache), 5000)
    for _ in range(3):
        caplog.clear()
        assert logprobs(tiny_llama) == fresh
    assert READ in caplog.text
    assert only_file(cache).suffix == ".packed"


def test_a_file_in_a_place_that_nothing_may_change(
    cache: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A good one is read; beside a damaged one, which stays, weights are packed again."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    fresh = logprobs(tiny_llama)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    caplog.clear()
    assert logprobs(tiny_llama) == fresh
    assert READ in caplog.text
    flip(only_file(cache), 5000)
    for _ in range(2):
        caplog.clear()
        assert logprobs(tiny_llama) == fresh
        assert ANEW in caplog.text


def test_another_version_packs_again_in_the_same_place(
    cache: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = logprobs(tiny_llama)
    monkeypatch.setattr("quire.quantization.kept.__version__", "0.0.0")
    caplog.clear()
    assert logprobs(tiny_llama) == fresh
    assert ANEW in caplog.text
    assert only_file(cache)
    assert logprobs(tiny_llama) == fresh
    assert READ in caplog.text


def test_another_instruction_set_packs_again(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By it rotated rows may be rounded otherwise, and what a set computes is not to depend on who started first."""
    with LLM(str(tiny_llama), backend="cpu", quantization="int8", packed_cache="on", num_blocks=20):
        caplog.clear()
    portable = {"instruction_set": "portable", "packed_cache": "on", "num_blocks": 20}
    for expected in (ANEW, READ):
        with LLM(str(tiny_llama), backend="cpu", quantization="int8", **portable):
            assert expected in caplog.text
            caplog.clear()


def test_another_file_of_the_same_name_size_and_time_is_packed_again(
    cache: Path, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    before = logprobs(model)
    weights = model / "model.safetensors"
    times = weights.stat()
    content = bytearray(weights.read_bytes())
    # The lowest bits of some weights, far from the samples that the model's identity is made of.
    for offset in range(20_000, 60_000, 2):
        content[offset] ^= 8
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    caplog.clear()
    after = logprobs(model)
    assert after == logprobs(model, packed_cache="off")
    assert after != before
    assert READ not in caplog.text
    assert only_file(cache)


def test_a_model_in_another_place_does_not_replace_the_first(cache: Path, tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "copy")
    assert logprobs(tiny_llama) == logprobs(tmp_path / "copy")
    assert len(list(cache.iterdir())) == 2


def test_an_edit_of_the_rules_of_rounding_makes_another_key() -> None:
    own = Path(quire.__file__).parent
    rules = (Rounding, Checkpoint, rotated_heads, Rounded, round_to_panels)
    folders = {Path(inspect.getfile(rule)).relative_to(own).parts[0] for rule in rules}
    assert folders <= set(MADE_BY)


def test_an_edit_of_code_or_a_build_of_kernels_makes_another_key(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, built = tmp_path / "kernels" / "rounding.py", tmp_path / "_native.so"
    code.parent.mkdir()
    for path in (code, built):
        path.write_text("first")
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "quantization" / "kept.py"))
    monkeypatch.setattr(kept, "find_spec", lambda name: ModuleSpec(name, None, origin=str(built)))
    checkpoint, keys = open_checkpoint(str(tiny_llama)), []
    for path in (None, None, code, built):
        if path is not None:
            path.write_text("another one")
        keys.append(kept.packing_key(checkpoint, DType.FLOAT32, "int8"))
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_only_the_newest_are_kept(cache: Path, tiny_llama: Path) -> None:
    for number, (dtype, quantization) in enumerate([*KINDS, ("bfloat16", "int8")]):
        logprobs(tiny_llama, dtype, quantization)
        for path in cache.glob(f"*-{dtype}-{quantization}.packed"):
            os.utime(path, (number, number))
    names = sorted(path.stem.split("-", 1)[1] for path in cache.iterdir())
    assert names == ["bfloat16-int4", "bfloat16-int8", "bfloat16-none", "float32-int8"]


def test_nothing_to_write_to_is_no_error(cache: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.write_text("a file where the folder should be")
    assert logprobs(tiny_llama) == logprobs(tiny_llama, packed_cache="off")
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize("place", ["within a weight", "at a weight's last byte", "within the index"])
def test_a_full_disk_is_no_error(place: str, cache: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At a last byte that is left in the buffer, which is to be written when the file is closed too."""
    fresh = logprobs(tiny_llama)
    content = only_file(cache).read_bytes()
    only_file(cache).unlink()
    index = msgspec.json.decode(content[-END.size - END.unpack(content[-END.size :])[0] : -END.size])
    block = max(
        (block for entry in index["entries"].values() for block in entry["blocks"]), key=itemgetter("num_bytes")
    )
    room = {
        "within a weight": block["offset"] + block["num_bytes"] // 3,
        "at a weight's last byte": block["offset"] + block["num_bytes"] - 1,
        "within the index": len(content) - 100,
    }
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room[place], limits[1]))
    try:
        assert logprobs(tiny_llama) == fresh
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not be kept" in caplog.text
    assert list(cache.iterdir()) == []


def test_a_start_that_fails_keeps_nothing(cache: Path, tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-64:] = b"\xff" * 64
    weights.write_bytes(content)
    with pytest.raises(Exception, match="not numbers"):
        logprobs(model)
    assert list(cache.iterdir()) == []


def test_several_that_write_at_once(cache: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    fresh = logprobs(tiny_llama, packed_cache="off")

    def load(_: int) -> None:
        checkpoint, ops = open_checkpoint(str(tiny_llama)), select_ops("cpu")
        backend = select_backend("cpu", DType.FLOAT32, checkpoint.config)
        load_model(DECODERS, checkpoint, DType.FLOAT32, ops, backend, "int8", keep_packed=True)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(load, range(8)))
    assert only_file(cache)
    caplog.clear()
    assert logprobs(tiny_llama) == fresh
    assert READ in caplog.text


def test_a_user_without_a_home_starts_all_the_same(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logprobs(tiny_llama, packed_cache="off")
    monkeypatch.setenv("QUIRE_CACHE", "~no-such-user-here/x")
    assert logprobs(tiny_llama) == expected
    assert "Packed weights are not kept: There is no home" in caplog.text
