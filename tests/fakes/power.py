"""A disk that loses power: it keeps what was synced, and of the rest what it happens to keep.

The product speaks to SQLite as usual; its connection goes through apsw, whose file system is
ours. What was written is noted in order, and any moment of it can be laid down as files.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from fedagent_coordinator.books import mark


@dataclass(frozen=True, slots=True)
class Noted:
    """One thing that happened: write, truncate, sync, or a promise to whoever asked."""

    kind: str
    name: str
    offset: int = 0
    data: bytes = b""


def left(files: dict[str, bytes], log: Sequence[Noted], most: int) -> dict[str, bytes]:
    """Return the files after a power cut at the end of `log`.

    Of each write that was not synced the disk has kept so many bytes at most.
    """
    synced = {noted.name: at for at, noted in enumerate(log) if noted.kind == "sync"}
    disk = {name: bytearray(data) for name, data in files.items()}
    for at, one in enumerate(log):
        file = disk.setdefault(one.name, bytearray())
        kept = len(one.data) if at <= synced.get(one.name, -1) else min(most, len(one.data))
        if one.kind == "truncate" and (at <= synced.get(one.name, -1) or most):
            file[one.offset :] = bytes(max(0, one.offset - len(file)))
        elif one.kind == "write" and kept:
            file.extend(bytes(max(0, one.offset - len(file))))
            file[one.offset : one.offset + kept] = one.data[:kept]
    return {name: bytes(data) for name, data in disk.items()}


class _File(apsw.VFSFile):
    def __init__(self, log: list[Noted], name: str | apsw.URIFilename, flags: list[int]) -> None:
        super().__init__("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._log, self._name = log, Path(path or "").name

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - of apsw
        self._log.append(Noted("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - of apsw
        self._log.append(Noted("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - of apsw
        self._log.append(Noted("sync", self._name))
        super().xSync(flags)


class _Files(apsw.VFS):
    def __init__(self, log: list[Noted]) -> None:
        self._log = log
        super().__init__("noting", "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - of apsw
        return apsw.VFSFile("", name, flags) if name is None else _File(self._log, name, flags)


class _Row(tuple[object, ...]):  # noqa: SLOT001 - a tuple has none
    names: dict[str, int]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return list(self.names)


class _Cursor(list[object]):
    """The rows of a statement; with what a cursor of sqlite3 has beside."""

    row_factory: object = _Row
    rowcount = -1
    fetchall = list.copy

    def __init__(self, raw: apsw.Connection) -> None:
        super().__init__()
        self._raw = raw

    def fetchone(self) -> object:
        return self.pop(0) if self else None

    def execute(self, statement: str, values: object = ()) -> "_Cursor":
        def row(cursor: apsw.Cursor, found: tuple[object, ...]) -> object:
            if self.row_factory is None:
                return found
            made = _Row(found)
            made.names = {column[0]: at for at, column in enumerate(cursor.get_description())}
            return made

        cursor = self._raw.cursor()
        cursor.row_trace = row
        self[:] = cursor.execute(statement, values)  # type: ignore[arg-type]
        self.rowcount = self._raw.changes()
        return self


class _Connection:
    """What the product uses of a connection of sqlite3."""

    row_factory: object = None

    def __init__(self, path: Path) -> None:
        self._raw = apsw.Connection(str(path), vfs="noting")
        self._raw.set_busy_timeout(1000)
        self.close = self._raw.close

    def cursor(self) -> _Cursor:
        return _Cursor(self._raw)

    def execute(self, statement: str, values: object = ()) -> _Cursor:
        return self.cursor().execute(statement, values)

    def executemany(self, statement: str, rows: Iterator[object]) -> None:
        self._raw.cursor().executemany(statement, rows)  # type: ignore[arg-type]

    @property
    def in_transaction(self) -> bool:
        return self._raw.in_transaction


@contextmanager
def noted(patch: pytest.MonkeyPatch, log: list[Noted]) -> Iterator[None]:
    """Note in `log` what `Books` that are opened in here write and sync."""

    class System:
        """What the mark's file asks of the system."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def pwrite(self, fd: int, data: bytes, offset: int) -> int:
            log.append(Noted("write", mark.MARK, offset, data))
            return os.pwrite(fd, data, offset)

        def fdatasync(self, fd: int) -> None:
            log.append(Noted("sync", mark.MARK))
            os.fdatasync(fd)

    files, connect = _Files(log), sqlite3.connect
    with patch.context() as patched:
        patched.setattr(mark, "os", System())
        patched.setattr(
            sqlite3,
            "connect",
            lambda path, **_: connect(path) if path == ":memory:" else _Connection(path),
        )
        yield
    files.unregister()
