"""Tensors on the wire: safetensors with an exact manifest and a SHA-256 name.

Parsing is not validation: safetensors accepts NaN, thousands of empty tensors
and repeated header keys. Here the header is limited and compared with the
expected manifest before any array is made.
"""

import functools
import hashlib
import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from .errors import DigestError, ProtocolError, too_large

MAX_HEADER_BYTES = 256 * 1024
SMALL_HEADER = 4096
MAX_TENSORS = 4096
MAX_RANK = 8
_DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}
_ORDER = ("int64", "float64", "float32", "int32", "float16")
"""In which tensors stand in a file: what needs the widest alignment first."""
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

Tensors = Mapping[str, npt.NDArray[np.generic]]
Buffer = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True, slots=True, order=True)
class TensorSpec:
    """Name, numpy dtype name and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its data."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The exact set of tensors that an object must hold, sorted by name."""

    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, tensors: Tensors) -> "Manifest":
        """Describe these tensors."""
        specs = (TensorSpec(name, str(a.dtype), a.shape) for name, a in tensors.items())
        return cls(tuple(sorted(specs)))

    @property
    def nbytes(self) -> int:
        """Size of all data."""
        return sum(spec.nbytes for spec in self.specs)

    @property
    def max_file_bytes(self) -> int:
        """Upper bound of an encoded object with this manifest."""
        return self.nbytes + MAX_HEADER_BYTES + 8


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and where its data stands in the encoded bytes."""

    spec: TensorSpec
    start: int
    stop: int


def digest_of(data: Buffer) -> str:
    """Return the SHA-256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def check_digest(data: Buffer, digest: str) -> None:
    """Raise `DigestError` unless the bytes hash to their name."""
    actual = digest_of(data)
    if actual != digest:
        raise DigestError(f"expected {digest:.12}, found {actual:.12}")


def encode_tensors(tensors: Tensors) -> bytes:
    """Return the tensors as safetensors bytes, the same for the same content."""
    # Not `ascontiguousarray`, which makes a row of a single number.
    return safetensors.numpy.save({k: np.asarray(v, order="C") for k, v in tensors.items()})


def tensor_parts(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yield what `encode_tensors` returns, a tensor at a time: large models are not copied."""
    little = {name: _little(tensors[name]) for name in tensors}
    names = sorted(little, key=lambda name: (_ORDER.index(little[name].dtype.name), name))
    header: dict[str, dict[str, object]] = {}
    stop = 0
    for name in names:
        array, start = little[name], stop
        stop += array.nbytes
        code = _CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (start, stop)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield little[name].reshape(-1).view(np.uint8).data


def _little(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)


def locate(data: Buffer) -> tuple[Located, ...]:
    """Parse a safetensors header under our limits; sorted by name.

    Raises:
        ProtocolError: The header is over a limit, not well formed, or does not fit the data.
    """
    view = memoryview(data).cast("B")
    if len(view) < 8:
        raise _unfit("too short for a header")
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise too_large("tensor header", length, MAX_HEADER_BYTES)
    if 8 + length > len(view):
        raise _unfit("the header is cut off")
    read = _located_again if length <= SMALL_HEADER else _located
    return read(bytes(view[8 : 8 + length]), len(view))


def _located(text: bytes, size: int) -> tuple[Located, ...]:
    """Return what a header says of so many bytes; those of a round's updates say the same."""
    try:
        header = json.loads(text, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise _unfit("the header is not JSON") from error
    if not isinstance(header, dict):
        raise _unfit("the header is not a map")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise too_large("tensor count", len(header), MAX_TENSORS)
    origin = 8 + len(text)
    located = [_locate_one(name, entry, origin) for name, entry in header.items()]
    position = origin
    for item in sorted(located, key=lambda item: (item.start, item.stop)):
        if item.start != position:
            raise _unfit("tensor data has a hole or an overlap")
        position = item.stop
    if position != size:
        raise _unfit("tensor data is longer or shorter than declared")
    return tuple(sorted(located, key=lambda item: item.spec))


_located_again = functools.lru_cache(maxsize=8)(_located)


def decode_tensors(data: Buffer, manifest: Manifest) -> dict[str, npt.NDArray[np.generic]]:
    """Return views on the data, exactly as the manifest says; raises what `locate` raises."""
    located = locate(data)
    expect_manifest(located, manifest)
    return {item.spec.name: tensor_at(data, item) for item in located}


def expect_manifest(located: tuple[Located, ...], manifest: Manifest) -> None:
    """Raise `ProtocolError` naming the first difference, if there is one."""
    found = tuple(item.spec for item in located)
    if found == manifest.specs:
        return
    want = {spec.name: spec for spec in manifest.specs}
    have = {spec.name: spec for spec in found}
    for name in sorted(want.keys() | have.keys()):
        if want.get(name) != have.get(name):
            raise _unfit(
                f"tensor {name[:64]!r}: expected {_show(want.get(name))}, "
                f"got {_show(have.get(name))}"
            )


def tensor_at(data: Buffer, item: Located) -> npt.NDArray[np.generic]:
    """Return one tensor as a read-only view on the data."""
    view = memoryview(data).cast("B")[item.start : item.stop]
    dtype = np.dtype(item.spec.dtype).newbyteorder("<")
    array = np.frombuffer(view, dtype=dtype).reshape(item.spec.shape)
    array.flags.writeable = False
    return array


def _unfit(detail: str) -> ProtocolError:
    return ProtocolError(detail, "manifest_mismatch")


def _show(spec: TensorSpec | None) -> str:
    return "nothing" if spec is None else f"{spec.dtype}{list(spec.shape)}"


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is repeated")
    return result


def _locate_one(name: str, entry: object, origin: int) -> Located:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _unfit(f"tensor {name[:64]!r}: malformed entry")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _unfit(f"tensor {name[:64]!r}: dtype {str(dtype)[:16]!r} is not supported")
    if not _naturals(shape, MAX_RANK) or not _naturals(offsets, 2) or len(offsets) != 2:
        raise _unfit(f"tensor {name[:64]!r}: malformed shape or offsets")
    spec = TensorSpec(name, _DTYPES[dtype], tuple(shape))
    start, stop = origin + offsets[0], origin + offsets[1]
    if stop - start != spec.nbytes:
        raise _unfit(f"tensor {name[:64]!r}: offsets do not fit its shape")
    return Located(spec, start, stop)


def _naturals(value: object, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(n) is int and 0 <= n < 2**48 for n in value)
    )
