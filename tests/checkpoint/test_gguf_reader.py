"""What is read from well-formed GGUF files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.checkpoint.gguf_builder import ARRAY, BOOL, STRING, TENSOR_Q8_0, U32, Entry, array, gguf_bytes, pair, string

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.pull import pull
from quire.errors import UnsupportedModelError


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_of_every_type(tmp_path: Path) -> None:
    path = tmp_path / "metadata.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "héllo 🙂")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_array("texts", ["a", "▁b", "🙂"])
    writer.add_array("flags", [True, False, True])
    writer.add_array("bytes", b"\x00\xff")
    finish(writer)
    with GGUFFile(path) as file:
        metadata = file.metadata
    assert metadata.pop("general.architecture") == "llama"
    assert metadata.pop("f32") == float(np.float32(0.1))
    assert metadata == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "héllo 🙂",
        "ints": [1, -2, 3],
        "floats": [0.5, -1.25],
        "texts": ["a", "▁b", "🙂"],
        "flags": [True, False, True],
        "bytes": [0, 255],
    }
    assert metadata["yes"] is True
    assert type(metadata["u8"]) is int


def test_nested_and_empty_arrays(tmp_path: Path) -> None:
    numbers = array(U32, 2, struct.pack("<2I", 7, 8))
    texts = array(STRING, 2, string("x") + string(""))
    path = tmp_path / "nested.gguf"
    pairs = [
        pair("nested", ARRAY, array(ARRAY, 3, numbers + texts + array(BOOL, 0, b""))),
        pair("empty", ARRAY, array(STRING, 0, b"")),
    ]
    path.write_bytes(gguf_bytes(pairs))
    with GGUFFile(path) as file:
        assert file.metadata == {"nested": [[7, 8], ["x", ""], []], "empty": []}
        assert file.tensors == {}


def test_versions(tmp_path: Path) -> None:
    path = tmp_path / "version.gguf"
    values = np.arange(8, dtype=np.float32)
    for version in (2, 3):
        path.write_bytes(gguf_bytes([], [Entry("x", [8])], values.tobytes(), version=version))
        with GGUFFile(path) as file:
            np.testing.assert_array_equal(file.read_rows("x", 0, 8), values)
    for version in (0, 1, 4):
        path.write_bytes(gguf_bytes(version=version))
        with pytest.raises(UnsupportedModelError, match=f"version {version}; supported are 2 and 3"):
            GGUFFile(path)


def test_big_endian_file_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    finish(gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG))
    with pytest.raises(UnsupportedModelError, match=r"big\.gguf is a big-endian"):
        GGUFFile(path)


@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_shapes_and_alignment(tmp_path: Path, alignment: int) -> None:
    """Shapes come outermost first, and rows are of the outermost dimension."""
    rng = np.random.default_rng(0)
    tensors = {
        "vector": rng.standard_normal(5, np.float32),
        "matrix": rng.standard_normal((3, 7), np.float32),
        "experts": rng.standard_normal((4, 2, 3), np.float32).astype(np.float16),
    }
    path = tmp_path / "shapes.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    finish(writer)
    with GGUFFile(path) as file:
        for name, values in tensors.items():
            assert file.tensors[name].shape == values.shape
            assert file.tensors[name].num_bytes == values.nbytes
            assert file.tensors[name].offset % alignment == 0
            np.testing.assert_array_equal(file.read_rows(name, 1, 3), values[1:3].astype(np.float32))
            assert file.read_rows(name, 2, 2).shape == (0, *values.shape[1:])
            for start, stop in ((-1, 1), (2, 1), (0, len(values) + 1)):
                with pytest.raises(IndexError, match=name):
                    file.read_rows(name, start, stop)


def test_elements_of_a_quantized_vector_may_start_within_a_block(tmp_path: Path) -> None:
    stored = np.random.default_rng(1).integers(0, 128, 4 * 34, np.uint8)
    path = tmp_path / "vector.gguf"
    path.write_bytes(gguf_bytes([], [Entry("x", [128], TENSOR_Q8_0)], stored.tobytes()))
    with GGUFFile(path) as file:
        whole = file.read_rows("x", 0, 128)
        for start, stop in ((0, 1), (31, 33), (40, 41), (33, 128), (64, 96), (50, 50)):
            np.testing.assert_array_equal(file.read_rows("x", start, stop), whole[start:stop])


def test_rows_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    values = np.arange(8, dtype=np.float32)
    path.write_bytes(gguf_bytes([], [Entry("x", [8])], values.tobytes()))
    with GGUFFile(path) as file:
        rows = file.read_rows("x", 0, 8)
    path.unlink()
    np.testing.assert_array_equal(rows, values)
    rows[0] = 5.0


@pytest.mark.real
def test_a_real_model_is_read_as_the_gguf_package_reads_it() -> None:
    path = pull("smollm2")
    theirs = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        assert {key: theirs.fields[key].contents() for key in file.metadata} == file.metadata
        assert [
            (name, tensor.shape, tensor.type.number, tensor.offset, tensor.num_bytes)
            for name, tensor in file.tensors.items()
        ] == [
            (tensor.name, tuple(tensor.shape.tolist()[::-1]), tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
            for tensor in theirs.tensors
        ]
