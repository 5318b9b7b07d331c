"""Weights read from safetensors files, single and sharded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
from safetensors.numpy import save_file

from quire.checkpoint.safetensors_files import SafetensorsFiles
from quire.checkpoint.safetensors_index import INDEX_FILE, SINGLE_FILE, find_safetensors
from quire.checkpoint.weights import TensorInfo
from quire.errors import CheckpointError, UnsupportedModelError

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((5, 7), np.float32)
EXPERTS = RNG.standard_normal((3, 2, 4), np.float32).astype(np.float16)
VECTOR_BITS = RNG.integers(0, 2**16, 9, np.uint16)


def write(path: Path, tensors: dict[str, tuple[str, npt.NDArray[Any]]]) -> Path:
    """A file with dtypes numpy does not know, which the library agrees is right."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        offsets = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += values.tobytes()
    encoded = json.dumps(header).encode()
    content = len(encoded).to_bytes(8, "little") + encoded + data
    assert {name for name, _ in safetensors.deserialize(content)} == tensors.keys()
    path.write_bytes(content)
    return path


@pytest.fixture
def mixed_file(tmp_path: Path) -> Path:
    return write(
        tmp_path / SINGLE_FILE,
        {
            "matrix": ("F32", MATRIX),
            "experts": ("F16", EXPERTS),
            "vector": ("BF16", VECTOR_BITS),
            "scalar": ("F32", np.array(2.5, np.float32)),
            "positions": ("I64", np.arange(4)),
        },
    )


def test_buffers_of_any_dtype_stand_beside_weights(tmp_path: Path) -> None:
    integers = {f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)}
    buffers = {name: (name, np.zeros(3, dtype)) for name, dtype in {**integers, "F64": "f8", "BOOL": "?"}.items()}
    path = write(tmp_path / SINGLE_FILE, buffers | {"matrix": ("F32", MATRIX)})
    source = SafetensorsFiles([path])
    assert source.names() == [*buffers, "matrix"]
    assert np.array_equal(source.read("matrix", 0, 5), MATRIX)


def test_infos_and_rows(mixed_file: Path) -> None:
    source = SafetensorsFiles([mixed_file])
    assert sorted(source.names()) == ["experts", "matrix", "positions", "scalar", "vector"]
    assert source.info("matrix") == TensorInfo((5, 7), "float32")
    assert source.info("experts") == TensorInfo((3, 2, 4), "float16")
    assert source.info("vector") == TensorInfo((9,), "bfloat16")
    for name, values in (("matrix", MATRIX), ("experts", EXPERTS), ("vector", VECTOR_BITS)):
        for start, stop in ((0, len(values)), (1, 3), (2, 2)):
            rows = source.read(name, start, stop)
            assert rows.dtype == values.dtype
            np.testing.assert_array_equal(rows, values[start:stop])
    np.testing.assert_array_equal(source.read("scalar", 0, 1), np.array([2.5], np.float32))
    source.close()


def test_rows_out_of_range(mixed_file: Path) -> None:
    source = SafetensorsFiles([mixed_file])
    for start, stop in ((-1, 1), (2, 1), (0, 6)):
        with pytest.raises(IndexError, match="'matrix' has 5 rows"):
            source.read("matrix", start, stop)
    source.close()


def test_rows_cannot_be_written_and_outlive_the_source(mixed_file: Path) -> None:
    source = SafetensorsFiles([mixed_file])
    first, second = source.read("matrix", 0, 2), source.read("matrix", 2, 5)
    source.close()
    np.testing.assert_array_equal(first, MATRIX[:2])
    np.testing.assert_array_equal(second, MATRIX[2:])
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


def test_dtype_that_is_no_weights_dtype_matters_only_when_asked_for(mixed_file: Path) -> None:
    """Old checkpoints carry buffers (masks, position ids) that no model reads."""
    source = SafetensorsFiles([mixed_file])
    for read in (lambda: source.info("positions"), lambda: source.read("positions", 0, 1)):
        with pytest.raises(UnsupportedModelError, match=r"model\.safetensors: tensor 'positions' has dtype I64.*BF16"):
            read()
    source.close()


def test_missing_tensor_is_named(mixed_file: Path) -> None:
    source = SafetensorsFiles([mixed_file])
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head\.weight' among the 5 of .*model\.safetensors"):
        source.info("lm_head.weight")
    source.close()


def write_shards(directory: Path) -> dict[str, str]:
    """Two shards, their index, and a file that is not part of the model."""
    weight_map = {"matrix": "model-00001-of-00002.safetensors", "experts": "model-00002-of-00002.safetensors"}
    save_file({"matrix": MATRIX}, directory / weight_map["matrix"])
    save_file({"experts": EXPERTS}, directory / weight_map["experts"])
    save_file({"matrix": MATRIX}, directory / "adapter.safetensors")
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return weight_map


def test_shards_named_by_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    source = SafetensorsFiles(find_safetensors(tmp_path))
    assert source.names() == ["matrix", "experts"]
    np.testing.assert_array_equal(source.read("matrix", 0, 5), MATRIX)
    np.testing.assert_array_equal(source.read("experts", 0, 3), EXPERTS)
    source.close()


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with pytest.raises(CheckpointError, match=r"adapter\.safetensors: tensor 'matrix' is in .*00001-of-00002"):
        SafetensorsFiles([tmp_path / "model-00001-of-00002.safetensors", tmp_path / "adapter.safetensors"])


@pytest.mark.parametrize("name", [b"..\\\\model.safetensors", b"C:model.safetensors", b"\xff.safetensors"])
def test_index_names_that_other_systems_read_as_paths(name: bytes, tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_bytes(b'{"weight_map": {"matrix": "%b"}}' % name)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        find_safetensors(tmp_path)


def test_single_file_by_its_name(mixed_file: Path) -> None:
    save_file({"matrix": MATRIX}, mixed_file.parent / "adapter.safetensors")
    assert find_safetensors(mixed_file.parent) == [mixed_file]
