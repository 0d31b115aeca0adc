"""Tensors: exact manifests, limits before allocation, typed errors for any bytes."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_parts,
)

MODEL = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.array([1, 2, 3], np.float32),
}
MANIFEST = Manifest.of(MODEL)
GOOD = encode_tensors(MODEL)


def _raw(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_tensors_survive_and_equal_what_the_library_reads() -> None:
    ours, theirs = decode_tensors(GOOD, MANIFEST), safetensors.numpy.load(GOOD)
    assert ours.keys() == theirs.keys() == MODEL.keys()
    for name in MODEL:
        np.testing.assert_array_equal(ours[name], theirs[name])


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=6),
    dtypes=st.lists(st.sampled_from(["float32", "float64", "int64", "float16"]), min_size=6),
    names=st.lists(st.text('ab.é"\\', min_size=1, max_size=4), min_size=6, unique=True),
)
def test_parts_are_the_library_s_bytes(
    shapes: list[list[int]], dtypes: list[str], names: list[str]
) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.normal(size=shape).astype(dtype)
        for name, shape, dtype in zip(names, shapes, dtypes, strict=False)
    }
    tensors["turned"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert b"".join(tensor_parts(tensors)) == encode_tensors(tensors)


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        ({"weight": MODEL["weight"]}, "bias"),
        ({**MODEL, "extra": MODEL["bias"]}, "extra"),
        ({**MODEL, "weight": MODEL["weight"].T}, "weight"),
        ({**MODEL, "weight": MODEL["weight"].astype(np.float64)}, "weight"),
        ({**MODEL, "bias": np.float32(1).reshape(())}, "bias"),
        ({**MODEL, "bias": np.zeros(0, np.float32)}, "bias"),
    ],
)
def test_another_manifest_is_refused_by_name(
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]], names: str
) -> None:
    with pytest.raises(ProtocolError, match=names):
        decode_tensors(encode_tensors(tensors), MANIFEST)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",  # the start of a pickle
        b"PK\x03\x04" + b"\0" * 30,
        b"\x93NUMPY" + b"\0" * 60,
        b"<html></html>",
        _raw(b"[]"),
        _raw(b'{"a":1}'),
        _raw(b'{"a":' * 5000),
        _raw({"a": {**ENTRY, "dtype": "BF16"}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "dtype": ["F32"]}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "shape": [-1]}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "shape": [True]}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "shape": [1.0]}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "shape": [2**40, 2**40]}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "shape": [1] * 9}}, b"\0" * 4),
        _raw({"a": {**ENTRY, "data_offsets": [4, 8]}}, b"\0" * 8),
        _raw({"a": ENTRY, "b": ENTRY}, b"\0" * 4),
        _raw({"a": ENTRY}, b"\0" * 5),
        _raw({"a": ENTRY}, b"\0" * 3),
        _raw(b'{"a":' + json.dumps(ENTRY).encode() + b',"a":' + json.dumps(ENTRY).encode() + b"}"),
    ],
)
def test_malformed_tensor_sets_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        locate(data)


def test_limits_hold_before_anything_is_parsed() -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        locate(struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}")
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    many = {f"{i:x}": empty for i in range(MAX_TENSORS + 1)}
    text = json.dumps(many, separators=(",", ":")).encode()
    with pytest.raises(ProtocolError, match="the limit is"):
        locate(_raw(text))


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_decode_or_raise_a_protocol_error(data: bytes, framed: bool) -> None:
    blob = _raw(data) if framed else data
    try:
        decode_tensors(blob, MANIFEST)
    except ProtocolError as error:
        assert error.reason in {"manifest_mismatch", "oversize"}


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_one_damaged_byte_is_data_or_a_protocol_error(position: int, value: int) -> None:
    damaged = bytearray(GOOD)
    damaged[position] = value
    try:
        assert decode_tensors(damaged, MANIFEST).keys() == MODEL.keys()
    except ProtocolError as error:
        assert error.reason in {"manifest_mismatch", "oversize"}
