"""Damaged GGUF files: each names file and key or tensor, and costs no memory the file does not justify."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.file_mutations import Mutation, mutate, mutations
from tests.checkpoint.gguf_builder import (
    ARRAY,
    BOOL,
    STRING,
    TENSOR_Q8_0,
    U8,
    U32,
    Entry,
    array,
    gguf_bytes,
    pair,
    string,
)

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf.cursor import MAX_TABLE_BYTES
from quire.checkpoint.gguf.metadata import ENTRIES_OF_AN_ARRAY, MAX_ARRAY_ENTRIES, MIN_PAIR_BYTES
from quire.checkpoint.gguf.reader import MAX_TABLE_ENTRIES
from quire.checkpoint.gguf.tensor_table import MIN_ENTRY_BYTES
from quire.errors import CheckpointError, UnsupportedModelError

DATA = bytes(64)
TWO = [Entry("first", [8]), Entry("second", [8], offset=32)]


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def nested_arrays(depth: int) -> bytes:
    return array(ARRAY, 1, b"") * depth + array(U32, 0, b"")


DAMAGED = {
    "empty": (b"", "is empty"),
    "a few bytes": (b"GG", "the header needs 4 bytes for the magic at byte 0, where 2 are left"),
    "wrong magic": (gguf_bytes(magic=b"GGML"), "starts with b'GGML'"),
    "ends in the header": (gguf_bytes()[:13], "the header needs 8 bytes"),
    "2^60 tensors": (gguf_bytes(num_tensors=2**60), "announces 1,152,921,504,606,846,976 tensors"),
    "2^60 keys": (gguf_bytes(num_pairs=2**60), "announces 1,152,921,504,606,846,976 metadata entries"),
    "key of 2^40 bytes": (gguf_bytes([u64(2**40) + bytes(9)]), "metadata entry 0 has a key of 1,099,511,627,776 bytes"),
    "key past the end": (
        gguf_bytes([u64(1000) + bytes(9)]),
        "metadata entry 0 needs 1,000 bytes for a key at byte 32, where 32 are left",
    ),
    "key not UTF-8": (gguf_bytes([pair(b"\xff", U32, u32(1))]), "metadata entry 0 has a key that is not UTF-8"),
    "duplicate key": (gguf_bytes([pair("k", U32, u32(1))] * 2), "metadata key 'k' comes twice"),
    "unknown value type": (gguf_bytes([pair("k", 13, bytes(8))]), "metadata key 'k' has value type 13"),
    "string of 2^40 bytes": (gguf_bytes([pair("k", STRING, u64(2**40))]), "'k' needs 1,099,511,627,776 bytes"),
    "string of 2^64 - 1 bytes": (
        gguf_bytes([pair("k", STRING, u64(2**64 - 1))]),
        "'k' needs 18,446,744,073,709,551,615",
    ),
    "string not UTF-8": (gguf_bytes([pair("k", STRING, string(b"\xc3\x28"))]), "'k' has a string that is not UTF-8"),
    "truth value 2": (gguf_bytes([pair("k", BOOL, b"\x02")]), "'k' has a truth value of 2"),
    "array of 2^60 numbers": (gguf_bytes([pair("k", ARRAY, array(U32, 2**60, bytes(64)))]), "'k' announces 1,152,9"),
    "array of 2^60 strings": (gguf_bytes([pair("k", ARRAY, array(STRING, 2**60, bytes(64)))]), "'k' announces 1,152,9"),
    "array of 2^60 arrays": (gguf_bytes([pair("k", ARRAY, array(ARRAY, 2**60, bytes(64)))]), "'k' announces 1,152,9"),
    "array of an unknown type": (gguf_bytes([pair("k", ARRAY, array(99, 1, bytes(64)))]), "'k' has value type 99"),
    "arrays nested without end": (gguf_bytes([pair("k", ARRAY, nested_arrays(10_000))]), "'k' nests arrays"),
    "array string past the end": (gguf_bytes([pair("k", ARRAY, array(STRING, 1, u64(2**63)))]), "'k' has a string of"),
    "array cut off": (
        gguf_bytes([pair("k", ARRAY, array(STRING, 2, u64(9) + bytes(9)))], alignment=1),
        "'k' ends after 1 of 2 strings",
    ),
    "array string not UTF-8": (
        gguf_bytes([pair("k", ARRAY, array(STRING, 2, string("ok") + string(b"\x80")))]),
        r"'k' has a string \(number 1\) that is not UTF-8",
    ),
    "alignment 0": (gguf_bytes([pair("general.alignment", U32, u32(0))], TWO, DATA), "'general.alignment' is 0"),
    "alignment 48": (gguf_bytes([pair("general.alignment", U32, u32(48))], TWO, DATA), "'general.alignment' is 48"),
    "alignment a text": (gguf_bytes([pair("general.alignment", STRING, string("8"))], TWO, DATA), "alignment' is '8'"),
    "alignment past the end": (
        gguf_bytes([pair("general.alignment", U32, u32(2**31))], TWO, DATA),
        "tensor 'first' ends at byte 2,147,483,680, but the file has",
    ),
    "no tensor table": (gguf_bytes(num_tensors=1) + bytes(20), "tensor 0 needs|tensor '' "),
    "tensor name not UTF-8": (gguf_bytes([], [Entry(b"\xfe", [8])], DATA), "tensor 0 has a name that is not UTF-8"),
    "duplicate tensor": (gguf_bytes([], [TWO[0], Entry("first", [8], offset=32)], DATA), "tensor 'first' comes twice"),
    "no dimensions": (gguf_bytes([], [Entry("x", [])], DATA), "tensor 'x' has 0 dimensions"),
    "2^32 - 1 dimensions": (
        gguf_bytes([], [Entry("x", [8])], DATA).replace(u32(1) + u64(8), u32(2**32 - 1) + u64(8)),
        "tensor 'x' has 4,294,967,295 dimensions",
    ),
    "dimension 0": (
        gguf_bytes([], [Entry("x", [8, 0])], DATA),
        r"tensor 'x' has a dimension of 0 in its shape \[0, 8\]",
    ),
    "dimensions of 2^60": (
        gguf_bytes([], [Entry("x", [2**60] * 4)], DATA),
        "tensor 'x' ends at byte .* but the file has",
    ),
    "too many bytes": (gguf_bytes([], [Entry("x", [17])], DATA), "tensor 'x' ends at byte 132, but the file has 128"),
    "too few bytes": (gguf_bytes([], [Entry("x", [8])], DATA), "tensor 'x' is the last and ends at byte 96"),
    "row within a block": (
        gguf_bytes([], [Entry("x", [48, 2], TENSOR_Q8_0)], DATA),
        r"tensor 'x' has rows of 48 values, which blocks of 32 \(Q8_0\) do not fill",
    ),
    "overlapping tensors": (
        gguf_bytes([], [TWO[0], Entry("second", [8])], DATA),
        "tensor 'second' starts at byte 128, where 160 is next",
    ),
    "a gap between tensors": (
        gguf_bytes([], [TWO[0], Entry("second", [8], offset=64)], bytes(96)),
        "tensor 'second' starts at byte 192, where 160 is next",
    ),
    "unaligned tensor": (gguf_bytes([], [Entry("x", [8], offset=4)], DATA), "tensor 'x' starts at byte 68, where 64"),
    "offset 2^64 - 1": (gguf_bytes([], [Entry("x", [8], offset=2**64 - 1)], DATA), "tensor 'x' starts at byte 18,446"),
    "cut short": (gguf_bytes([], TWO, DATA)[:-1], "tensor 'second' ends at byte 192, but the file has 191 bytes"),
    "one tensor fewer": (gguf_bytes([], TWO, DATA, num_tensors=1), "tensor 'first' is the last and ends at byte"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_cve_2024_21802_damage_is_named(case: str, tmp_path: Path) -> None:
    content, message = DAMAGED[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


def sparse_array(value_type: int, count: int) -> bytes:
    return gguf_bytes([pair("k", ARRAY, array(value_type, count, b""))], alignment=1)


@pytest.mark.parametrize(
    ("tables", "num_bytes", "message"),
    [
        (sparse_array(U8, 3 * 10**7), 3 * 10**7, "'k' announces 30,000,000 numbers, where the arrays of a file may"),
        (sparse_array(STRING, 2**24 + 1), 2**27 + 8, "'k' announces 16,777,217 strings"),
        (sparse_array(ARRAY, 10**6), 12 * 10**6, "'k' announces 1,000,000 arrays, where .* counting for 64"),
        (
            gguf_bytes([pair("k", STRING, u64(MAX_TABLE_BYTES))], alignment=1),
            MAX_TABLE_BYTES,
            "'k' needs 134,217,728 bytes for a string",
        ),
        (
            gguf_bytes([pair("k", ARRAY, array(STRING, 1, u64(MAX_TABLE_BYTES)))], alignment=1),
            MAX_TABLE_BYTES,
            "'k' has a string of 134,217,728 bytes",
        ),
        (
            gguf_bytes(num_pairs=MAX_TABLE_ENTRIES + 1, alignment=1),
            MIN_PAIR_BYTES * (MAX_TABLE_ENTRIES + 1),
            "announces 65,537 metadata entries, where a file may have 65,536",
        ),
        (
            gguf_bytes(num_tensors=MAX_TABLE_ENTRIES + 1, alignment=1),
            MIN_ENTRY_BYTES * (MAX_TABLE_ENTRIES + 1),
            "announces 65,537 tensors, where a file may have 65,536",
        ),
    ],
    ids=["numbers", "strings", "arrays", "string", "string in an array", "metadata entries", "tensors"],
)
def test_a_sparse_file_costs_no_more_than_it_takes_on_disk(
    tables: bytes, num_bytes: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(tables)
    with path.open("r+b") as file:
        file.truncate(len(tables) + num_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message):
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_array_entries_are_counted_over_all_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    nested = array(ARRAY, 1, array(U8, 2, bytes(2)))
    path.write_bytes(gguf_bytes([pair("a", ARRAY, array(U8, 3, bytes(3))), pair("b", ARRAY, nested)], alignment=1))
    needed = 3 + ENTRIES_OF_AN_ARRAY + 2
    assert needed < MAX_ARRAY_ENTRIES
    monkeypatch.setattr("quire.checkpoint.gguf.metadata.MAX_ARRAY_ENTRIES", needed)
    with GGUFFile(path) as file:
        assert file.metadata == {"a": [0, 0, 0], "b": [[0, 0]]}
    monkeypatch.setattr("quire.checkpoint.gguf.metadata.MAX_ARRAY_ENTRIES", needed - 1)
    with pytest.raises(CheckpointError, match=f"'b' announces 2 numbers, where .* {needed - 1} entries in all"):
        GGUFFile(path)


@pytest.mark.parametrize("key", ["general.alignment", "split.count"])
def test_a_long_value_is_shortened_in_a_message(key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([pair(key, STRING, string("x" * 10_000))], TWO, DATA))
    with pytest.raises((CheckpointError, UnsupportedModelError), match=r"'x+\.\.\.x+'") as caught:
        GGUFFile(path)
    assert len(str(caught.value)) < 200 + len(str(path))


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    """What the damaged ones were made from: the tests above must fail for the damage alone."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([pair("general.alignment", U32, u32(32))], TWO, DATA))
    with GGUFFile(path) as file:
        assert list(file.tensors) == ["first", "second"]


@pytest.mark.parametrize(
    ("number", "named"), [(16, r"type 16 \(IQ2_XXS\)"), (5, "type 5,"), (2**32 - 1, "type 4294967295")]
)
def test_unread_type_names_file_tensor_and_what_is_supported(number: int, named: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([], [Entry("blk.0.attn_q.weight", [256], number)], DATA))
    with pytest.raises(UnsupportedModelError, match=rf"model\.gguf: tensor 'blk\.0\.attn_q\.weight' has {named}.*Q4_K"):
        GGUFFile(path)


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00003.gguf"
    path.write_bytes(gguf_bytes([pair("split.count", U32, u32(3))], TWO, DATA))
    with pytest.raises(UnsupportedModelError, match="one of 3 parts"):
        GGUFFile(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(CheckpointError, match="is not a file"):
            GGUFFile(path)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([], TWO, DATA))
    with GGUFFile(path) as file, pytest.raises(CheckpointError, match=r"model\.gguf has no tensor 'third' among its 2"):
        file.read_rows("third", 0, 1)


@pytest.fixture(scope="module")
def valid_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with every kind of metadata and several tensor types."""
    path = tmp_path_factory.mktemp("valid") / "valid.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_token_list(["<s>", "a", "▁b"])
    writer.add_token_scores([0.0, -1.0, -2.5])
    writer.add_token_types([3, 1, 1])
    rng = np.random.default_rng(0)
    writer.add_tensor("norm", rng.standard_normal(8, np.float32))
    writer.add_tensor("half", rng.standard_normal((3, 8), np.float32).astype(np.float16))
    for number, num_bytes in ((8, 34), (3, 20), (10, 84), (12, 144)):
        stored = rng.integers(0, 256, (2, num_bytes), np.uint8)
        writer.add_tensor(f"quantized.{number}", stored, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def check_mutation(content: bytes, path: Path) -> None:
    """Open and read everything: an error of quire's own is fine, anything else and much memory is not."""
    path.write_bytes(content)
    message = str(path)
    tracemalloc.start()
    try:
        with GGUFFile(path) as file:
            for name, tensor in file.tensors.items():
                assert file.read_rows(name, 0, tensor.shape[0]).shape == tensor.shape
    except (CheckpointError, UnsupportedModelError) as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(path) in message
    assert peak < 64 * len(content) + (256 << 10)


@given(st.data())
def test_cve_2024_21802_mutated_file(
    valid_file: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    changes: list[Mutation] = data.draw(mutations(len(valid_file)))
    check_mutation(mutate(valid_file, changes), tmp_path_factory.getbasetemp() / "mutated.gguf")


@pytest.mark.nightly
def test_cve_2024_21802_every_flipped_bit_and_every_length(valid_file: bytes, tmp_path: Path) -> None:
    for at in range(len(valid_file) * 8):
        flipped = bytearray(valid_file)
        flipped[at // 8] ^= 1 << at % 8
        check_mutation(bytes(flipped), tmp_path / "flipped.gguf")
    for length in range(len(valid_file)):
        check_mutation(valid_file[:length], tmp_path / "cut.gguf")
