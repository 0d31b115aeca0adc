"""Recorded files below FEDAGENT_DATA as bounded streams: plain, gzip, tar, CSV and JSON.

Whatever is missing, damaged, malformed or beyond a limit raises `TraceError`.
"""

import csv
import functools
import gzip
import io
import json
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, TypeVar

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE

T = TypeVar("T")


class TraceError(Exception):
    """Raised when a trace file cannot be used: missing, damaged, malformed or too large.

    Attributes:
        file: With ``:member`` for one inside an archive.
        line: Line (or entry of a list) from 1; None where the whole file is at fault.
    """

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(file, line, problem)
        self.file = file
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        where = "" if self.line is None else f", line {self.line}"
        return f"{self.file!r}{where}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a reader takes from one file."""

    unpacked_bytes: int = 256 * 1024**2  # after gzip and tar
    members: int = 10_000
    rows: int = 20_000_000  # rows or entries of the whole file, and numbers of an array
    line_bytes: int = 8192


LIMITS = Limits()

_STEP = 1 << 16
_BLOCK = 512


def data_path(name: str, *, folder: bool = False) -> Path:
    """Return a file below FEDAGENT_DATA, or a folder where that is allowed."""
    root = os.environ.get(DATA_VARIABLE, "")
    if not root:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(root) / name
    if not (path.exists() if folder else path.is_file()):
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    return path


def recorded(read: Callable[[Path], T], name: str, *, folder: bool = False) -> T:
    """Return what a reader makes of a file below FEDAGENT_DATA; read once in a process.

    Raises:
        DatasetError: It is not there, damaged, or something else.
    """
    path = data_path(name, folder=folder)
    try:
        value: T = _cached(read, path)
    except TraceError as error:
        raise DatasetError(path.name, str(error), "fetch the file again") from error
    return value


@functools.lru_cache(maxsize=8)
def _cached(read: Callable[[Path], T], path: Path) -> T:
    return read(path)


class _Bounded(io.RawIOBase):
    def __init__(self, inner: IO[bytes] | gzip.GzipFile, file: str, limit: int) -> None:
        super().__init__()
        self._inner, self._file, self._left = inner, file, limit
        self._limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override] # typeshed's Buffer has no len
        data = self._inner.read(min(len(buffer), _STEP))
        self._left -= len(data)
        if self._left < 0:
            raise TraceError(self._file, None, f"unpacks to more than {self._limit} bytes")
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Give the file's bytes, unpacked if it is gzip, as a stream."""
    file = str(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with (
                gzip.GzipFile(fileobj=raw) if packed else raw as inner,
                io.BufferedReader(_Bounded(inner, file, LIMITS.unpacked_bytes)) as stream,
            ):
                yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(file, None, "the gzip data are damaged or cut off") from error
    except OSError as error:
        raise TraceError(file, None, error.strerror or "cannot be read") from error


def lines(stream: IO[bytes], file: str) -> Iterator[tuple[int, bytes]]:
    """Give number (from 1) and text of each line that is not blank."""
    number = 0
    while line := stream.readline(LIMITS.line_bytes + 1):
        number += 1
        if len(line) > LIMITS.line_bytes:
            raise TraceError(file, number, f"is longer than {LIMITS.line_bytes} bytes")
        if number > LIMITS.rows:
            raise TraceError(file, number, f"is one more than the limit of {LIMITS.rows} lines")
        if text := line.strip():
            yield number, text


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Give name and content of each file of a tar or tar.gz, one at a time."""
    file, count, last = str(path), 0, "its start"
    # Blocks of the archive's own size: nothing is read beyond the mark of its end.
    with opened(path) as stream:
        try:
            with closing(tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK)) as archive:
                for member in archive:
                    count += 1
                    if count > LIMITS.members:
                        raise TraceError(file, None, f"has more than {LIMITS.members} members")
                    last = repr(member.name)
                    if not member.isdir():
                        yield member.name, _content(archive, member, file)
        except (tarfile.TarError, ValueError, OverflowError, IndexError) as error:
            raise TraceError(file, None, f"the tar data are damaged after {last}") from error
        rest = iter(lambda: stream.read(_STEP), b"")
        if stream.read(_BLOCK) != bytes(_BLOCK) or any(map(any, rest)):
            raise TraceError(file, None, f"the tar data are damaged or cut off after {last}")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, file: str) -> bytes:
    """Return a plain file's bytes; a sparse one would unpack past every limit."""
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    body = archive.extractfile(member) if plain else None
    if body is None:
        raise TraceError(f"{file}:{member.name}", None, "is no plain file")
    with body:
        return body.read()


def number(text: bytes | str, top: float = math.inf) -> float:
    """Return the finite number from 0 to `top` that the text is; a `ValueError` if it is none."""
    value = float(text)
    if not (0 <= value <= top and math.isfinite(value)) or "_" in str(text):
        raise ValueError(text)
    return value


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Give line number and the wanted columns (two or more) of each row; CSV or CSV in gzip."""
    file = str(path)
    at = 0

    def decoded() -> Iterator[str]:
        nonlocal at
        for number, text in lines(stream, file):
            at = number
            yield text.decode()

    with opened(path) as stream:
        try:
            rows = csv.reader(decoded(), strict=True)
            head = next(rows, [])
            if missing := [name for name in columns if head.count(name) != 1]:
                raise TraceError(file, 1, f"has no column {missing[0]}, or has it twice")
            wanted = itemgetter(*map(head.index, columns))
            for row in rows:
                if len(row) != len(head):
                    raise TraceError(file, at, f"has {len(row)} columns, not {len(head)}")
                yield at, wanted(row)
        except UnicodeDecodeError as error:
            raise TraceError(file, at, "is no UTF-8 text") from error
        except csv.Error as error:
            raise TraceError(file, at, f"is no CSV: {error}") from error


def json_list(path: Path) -> list[object]:
    """Return the JSON list of a file, plain or gzip."""
    with opened(path) as stream:
        data = stream.read()
    try:
        value: object = json.loads(data)
    except json.JSONDecodeError as error:
        raise TraceError(str(path), error.lineno, f"is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(str(path), None, "is no JSON") from error
    if not isinstance(value, list) or len(value) > LIMITS.rows:
        raise TraceError(str(path), None, f"is no list of at most {LIMITS.rows} entries")
    return value
