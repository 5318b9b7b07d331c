"""Dequantized values, bit for bit against the gguf package's own."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from quire.checkpoint.catalog import BUILTIN_MODELS
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf.block_types import BLOCK_TYPES, UNREAD_TYPES, BlockType
from quire.checkpoint.pull import pull

every_type = pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=lambda block_type: block_type.name)


def reference(stored: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.float32]:
    with np.errstate(invalid="ignore"):
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(number))
    return values


def assert_same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    """NaNs must be in the same places; which of the NaNs is for the processor to say."""
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))


def write_tensor(path: Path, stored: npt.NDArray[np.uint8], number: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("weight", stored, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@every_type
def test_type_has_the_formats_number_and_sizes(block_type: BlockType) -> None:
    their_type = gguf.GGMLQuantizationType(block_type.number)
    assert their_type.name == block_type.name
    assert gguf.GGML_QUANT_SIZES[their_type] == (block_type.num_values, block_type.num_bytes)


def test_names_of_unread_types() -> None:
    theirs = {int(number): number.name for number in gguf.GGMLQuantizationType}
    assert UNREAD_TYPES.items() <= theirs.items()
    assert not UNREAD_TYPES.keys() & BLOCK_TYPES.keys()


@every_type
def test_any_bytes_dequantize_as_the_reference_does(block_type: BlockType, tmp_path: Path) -> None:
    """Random bytes reach every code, every scale, infinities and NaNs."""
    rng = np.random.default_rng(block_type.number)
    num_blocks_per_row = max(1, 4096 // block_type.num_values)
    stored = rng.integers(0, 256, (40, num_blocks_per_row * block_type.num_bytes), np.uint8)
    with GGUFFile(write_tensor(tmp_path / "random.gguf", stored, block_type.number)) as file:
        ours = file.read_rows("weight", 0, 40)
        some = file.read_rows("weight", 7, 19)
    assert_same_bits(ours, reference(stored, block_type.number))
    assert_same_bits(some, ours[7:19])


@every_type
def test_extreme_codes(block_type: BlockType, tmp_path: Path) -> None:
    """All bits clear and all bits set under ordinary scales: signs of zero and the ends of each code's range."""
    stored = np.repeat(np.array([[0x00], [0xFF], [0x0F], [0xF0]], np.uint8), block_type.num_bytes, axis=1)
    blocks = stored.view(block_type.layout)
    for field in block_type.layout.names or ():
        if field in ("d", "dmin", "m"):
            blocks[field] = np.float16(-0.37)
    with GGUFFile(write_tensor(tmp_path / "extreme.gguf", stored, block_type.number)) as file:
        assert_same_bits(file.read_rows("weight", 0, 4), reference(stored, block_type.number))


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name, model in BUILTIN_MODELS.items() if model.path.endswith(".gguf")])
def test_rows_of_every_tensor_of_a_real_model(name: str) -> None:
    path = pull(name)
    content = np.memmap(path, np.uint8, "r")
    with GGUFFile(path) as file:
        assert file.tensors
        for name, tensor in file.tensors.items():
            num_rows = tensor.shape[0]
            stored = content[tensor.offset : tensor.offset + tensor.num_bytes].reshape(num_rows, -1)
            for start in (0, num_rows // 2):
                stop = min(num_rows, start + 128)
                expected = reference(np.array(stored[start:stop]), tensor.type.number)
                ours = file.read_rows(name, start, stop)
                assert_same_bits(ours.reshape(stop - start, -1), expected)
