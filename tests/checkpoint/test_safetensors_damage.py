"""Damaged safetensors files: each names file and tensor, and costs no memory the file does not justify."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from tests.checkpoint.file_mutations import Mutation, mutate, mutations

from quire.checkpoint.safetensors_files import SafetensorsFiles
from quire.errors import CheckpointError, UnsupportedModelError


def file_with(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def tensor(start: int, stop: int, shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


ONE = tensor(0, 8, [2])
DAMAGED = {
    "empty": (b"", "is empty"),
    "a few bytes": (b"\x01\x00", "has 2 bytes, too few for a header"),
    "header of 2^60 bytes": (file_with({}, length=2**60), "announces a header of 1,152,921,504,606,846,976 bytes"),
    "header past the end": (file_with({}, length=3), "announces a header of 3 bytes in a file of 10"),
    "header not UTF-8": (file_with(b'{"\xff": 1}'), "a header that is not JSON in UTF-8"),
    "header in UTF-16": (file_with('{"x": 1}'.encode("utf-16-le")), "a header that is not JSON in UTF-8"),
    "header not JSON": (file_with(b'{"x": '), "a header that is not JSON in UTF-8"),
    "header nested without end": (file_with(b'{"x":' + b"[" * 100_000), "a header that is not JSON in UTF-8"),
    "header of a million marks": (
        file_with(b'{"x":[' + b"{}," * 2**19 + b"{}]}"),
        r"a header with 1,048,580 of the marks , : \[ and \{, where 1,048,576 are allowed",
    ),
    "header a list": (file_with([]), "a header that is not a JSON object"),
    "header after a space": (file_with(b" {}"), "a header that is not a JSON object"),
    "a number of 10,000 digits": (file_with(b'{"x": ' + b"9" * 10_000 + b"}"), "a header that is not JSON in UTF-8"),
    "duplicate tensor": (
        file_with(b'{"x":%b,"x":%b}' % ((json.dumps(ONE).encode(),) * 2), bytes(8)),
        "names 'x' twice",
    ),
    "duplicate field": (file_with(b'{"x":{"dtype":"F32","dtype":"F16"}}'), "names 'dtype' twice"),
    "metadata not texts": (file_with({"__metadata__": {"format": 1}}), "has a __metadata__ in its header"),
    "tensor not an object": (file_with({"x": 3}), "describes tensor 'x' wrongly: Expected `object`"),
    "no shape": (file_with({"x": {"dtype": "F32", "data_offsets": [0, 8]}}), "tensor 'x' wrongly: .*`shape`"),
    "unknown field": (file_with({"x": ONE | {"strides": [1]}}, bytes(8)), "tensor 'x' wrongly: .*`strides`"),
    "shape of a fraction": (file_with({"x": tensor(0, 8, [2.0])}, bytes(8)), "tensor 'x' wrongly: .*`float`"),
    "shape of a truth value": (file_with({"x": tensor(0, 4, [True])}, bytes(4)), "tensor 'x' wrongly: .*`bool`"),
    "negative dimension": (file_with({"x": tensor(0, 8, [-2])}, bytes(8)), "tensor 'x' wrongly: .*>= 0"),
    "dimension of 2^70": (file_with({"x": tensor(0, 8, [2**70])}, bytes(8)), "tensor 'x' wrongly: .*<= "),
    "a thousand dimensions": (
        file_with({"x": tensor(0, 8, [2] * 1000)}, bytes(8)),
        "tensor 'x' wrongly: .*length <= 64",
    ),
    "name not Unicode": (file_with(b'{"\\ud800": 1}'), r"a tensor whose name '\\ud800' is not Unicode"),
    "unknown dtype": (file_with({"x": tensor(0, 8, [2], "F31")}, bytes(8)), "tensor 'x' the dtype 'F31'"),
    "dtype not a text": (file_with({"x": tensor(0, 8, [2], ["F32"])}, bytes(8)), "tensor 'x' wrongly: .*`str`"),
    "wrong byte count": (file_with({"x": tensor(0, 8, [3])}, bytes(8)), r"tensor 'x' 8 bytes, not those of F32 \[3\]"),
    "dimensions of 2^62": (file_with({"x": tensor(0, 8, [2**62] * 64)}, bytes(8)), "tensor 'x' 8 bytes, not those of"),
    "ends within a byte": (file_with({"x": tensor(0, 1, [1], "F4")}, bytes(1)), "tensor 'x' of F4 .* within a byte"),
    "stop before start": (file_with({"x": tensor(8, 0, [2])}, bytes(8)), "tensor 'x' at byte 8 of its data, where 0"),
    "past the end": (file_with({"x": ONE}, bytes(7)), "but its tensors end at byte"),
    "bytes left over": (file_with({"x": ONE}, bytes(9)), "but its tensors end at byte"),
    "overlap": (
        file_with({"x": ONE, "y": tensor(4, 12, [2])}, bytes(12)),
        "tensor 'y' at byte 4 of its data, where 8 is next",
    ),
    "same place": (file_with({"x": ONE, "y": ONE}, bytes(8)), "tensor 'y' at byte 0 of its data, where 8 is next"),
    "gap": (file_with({"x": ONE, "y": tensor(12, 20, [2])}, bytes(20)), "tensor 'y' at byte 12 of its data, where 8"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    content, message = DAMAGED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            SafetensorsFiles([path])
        assert tracemalloc.get_traced_memory()[1] < 16 * len(content) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    """What the damaged ones were made from: the tests above must fail for the damage alone."""
    path = tmp_path / "model.safetensors"
    header = {"__metadata__": {"format": "pt"}, "x": ONE, "y": tensor(8, 16, [2]), "none": tensor(8, 8, [0, 4])}
    path.write_bytes(file_with(header, bytes(16)))
    source = SafetensorsFiles([path])
    assert source.names() == ["x", "none", "y"]
    source.close()


def test_a_header_longer_than_the_format_allows(tmp_path: Path) -> None:
    """Not read: in a sparse file any length is there for nothing."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_with(b"", length=100_000_001))
    os.truncate(path, 200_000_000)
    with pytest.raises(CheckpointError, match="announces a header of 100,000,001 bytes in a file of 200,000,000"):
        SafetensorsFiles([path])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.safetensors"):
        with pytest.raises(CheckpointError, match="is not a file"):
            SafetensorsFiles([path])


VALID = save(
    {
        "embed": np.arange(12, dtype=np.float32).reshape(4, 3),
        "norm": np.ones(3, np.float16),
        "mask": np.zeros((2, 2), np.uint8),
    },
    {"format": "pt"},
)


def check_mutation(content: bytes, path: Path) -> None:
    """quire may refuse a file or read from it exactly what the safetensors library reads."""
    path.write_bytes(content)
    message = str(path)
    contents: dict[str, bytes] = {}
    tracemalloc.start()
    try:
        source = SafetensorsFiles([path])
        for name in source.names():
            # A tensor without elements may have any number of rows.
            num_rows, *_ = source.info(name).shape or (1,)
            contents[name] = source.read(name, 0, num_rows).tobytes()
    except (CheckpointError, UnsupportedModelError) as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(path) in message
    assert peak < 64 * len(content) + (256 << 10)
    if contents:
        theirs = {name: bytes(fields["data"]) for name, fields in safetensors.deserialize(content)}
        assert contents.items() <= theirs.items()


@given(st.data())
def test_mutated_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    changes: list[Mutation] = data.draw(mutations(len(VALID)))
    check_mutation(mutate(VALID, changes), tmp_path_factory.getbasetemp() / "mutated.safetensors")


_SIZES = st.one_of(st.integers(0, 20), st.sampled_from([-1, 2**31, 2**60, 2**63, 2**64, 1.0, True, None, "4"]))
_ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F4", "I64", "x", 1]),
        "shape": st.one_of(st.lists(_SIZES, max_size=3), _SIZES),
        "data_offsets": st.lists(_SIZES, max_size=3),
    },
)


@given(header=st.dictionaries(st.sampled_from(["a", "b", "__metadata__", ""]), _ENTRIES), num_bytes=st.integers(0, 40))
def test_header_of_wrong_values(tmp_path_factory: pytest.TempPathFactory, header: Any, num_bytes: int) -> None:
    path = tmp_path_factory.getbasetemp() / "header.safetensors"
    check_mutation(file_with(header, bytes(num_bytes)), path)


@pytest.mark.nightly
def test_every_flipped_bit_and_every_length(tmp_path: Path) -> None:
    for at in range(len(VALID) * 8):
        flipped = bytearray(VALID)
        flipped[at // 8] ^= 1 << at % 8
        check_mutation(bytes(flipped), tmp_path / "flipped.safetensors")
    for length in range(len(VALID)):
        check_mutation(VALID[:length], tmp_path / "cut.safetensors")
