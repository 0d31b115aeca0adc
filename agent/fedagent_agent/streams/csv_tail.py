"""A CSV file that is being appended; its lines are samples, and so never logged."""

import hashlib
import math
import os
from collections import deque
from io import FileIO
from pathlib import Path

from fedagent_task.readers.table import FIRST_LINES, SampleError, Table
from fedagent_task.recipe.spec import DataSpec

from .base import Row, Samples, Stream, StreamSchema, finite, label_of, samples_of
from .kinds import Csv
from .spec import StreamError

MAX_LINE_BYTES = 1 << 20
MAX_BACKLOG_BYTES = 4 << 20
"""Most unread bytes that a take parses; of more, only the newest are read."""
TAIL_BYTES = 4096
"""So many bytes before the offset tell whether the file is still the one that was read."""


class CsvStream(Stream):
    """Follow a CSV file.

    The last line counts when its line end is there. The offset is the byte behind the last line
    that was read. A file that has not the same bytes before it is another one, and is read from its
    beginning; one that is replaced is read to its end first. What the first lines say of columns is
    read in each file anew: they are found by the names that they had, or the file is refused.
    """

    def __init__(self, spec: Csv, *, seed: int, offset: int, mark: str, data: DataSpec) -> None:
        del seed
        super().__init__(offset)
        self._spec, self._data = spec, data
        self._path = Path(os.path.expanduser(spec.path))  # noqa: PTH111 - Path's own raises
        self._resumed, self._meaning, start = mark.split(" ") if mark else ("", "", "0")
        self._start = int(start)  # of the lines that name the columns, in this file
        self._file: FileIO | None = None
        self._tail = b""
        self._table: Table | None = None
        self._found = ""  # the meaning of this file's columns
        self._names: tuple[str, ...] = ()  # of the features, then of the label
        self._columns: tuple[int, ...] = ()  # empty until this file's are learnt
        self._features = 0
        self._label: int | None = None

    @property
    def mark(self) -> str:
        """Digests of what is before the offset, and of what the columns are; where this is said."""
        return f"{_digest(self._tail)} {self._meaning} {self._start}"

    def open(self, now: float) -> StreamSchema:
        """Read the first lines to learn the columns."""
        del now
        self._file = self._reopen()
        if self._file is None:
            raise self._unreadable("there is no such file", "check the path")
        self._tail = self._before(self._file)
        try:
            if self._offset and _digest(self._tail) != self._resumed:
                self._begin("rotated")
            if not self._learn(self._file):
                hint = "start once it has one, with a line feed at its end"
                raise self._unreadable("has no complete line yet", hint)
        except StreamError:
            self.close()
            raise
        return StreamSchema(len(self._columns), names=self._names[: len(self._columns)])

    def take(self, now: float) -> Samples:
        """Return the whole lines that were appended.

        Raises:
            StreamError: The file is another one, which cannot be read as the one before.
        """
        del now
        rows: deque[Row] = deque(maxlen=self._spec.buffer)
        try:
            self._read_on(rows)
            if self._was_replaced():
                self._read_on(rows)  # what came between the read and the rename
                self.close()
                self._file = self._reopen()
                self._begin("rotated")
                self._read_on(rows)
            self._expect_one("csv", "line", str(self._path))
        except StreamError:
            if not rows:
                raise
        return samples_of(rows, self._features)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --------------------------------------------------------------- the file

    def _reopen(self) -> FileIO | None:
        """Return the file, or None while there is none."""
        try:
            if self._path.is_fifo():
                raise self._unreadable("cannot be read twice", "have it written to a file")
            # Unbuffered: what was read before a truncation must not come again.
            return self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error.strerror or "cannot be read", "check the path") from error

    def _unreadable(self, reason: str, hint: str) -> StreamError:
        return StreamError("csv", reason, hint, str(self._path))

    def _was_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # renamed away, and the new one is not there yet
        except OSError as error:
            raise self._unreadable(error.strerror or "cannot be read", "check the path") from error
        return self._file is None or not os.path.samestat(os.fstat(self._file.fileno()), there)

    def _before(self, file: FileIO) -> bytes:
        count = min(self._offset, TAIL_BYTES)
        return os.pread(file.fileno(), count, self._offset - count)

    def _begin(self, why: str) -> None:
        """Go to the beginning of another file."""
        self._counters[why] += 1
        self._offset, self._start, self._tail, self._columns = 0, 0, b"", ()
        self._read, self._unread = False, []

    # ---------------------------------------------------------------- columns

    def _learn(self, file: FileIO) -> bool:
        """Learn from the first lines; False while there is none."""
        head = os.pread(file.fileno(), MAX_LINE_BYTES, self._start)
        lines = [*map(_text, head[: head.rfind(b"\n") + 1].splitlines()[:FIRST_LINES])]
        if not any(map(str.strip, lines)):
            return False
        try:
            table = Table.learn(lines)
        except SampleError as error:
            raise self._unreadable(error.reason, error.hint) from error
        former, new = self._table, not (self._offset or self._columns)
        if former is not None and former.width == table.width and not table.names:
            # It goes on without its first lines, as where a logger's file is cut.
            table.names, table.units = former.names, former.units
        self._find_columns(table)
        self._table = table
        if new:
            self._expect_sample(table, lines)
        return True

    def _expect_sample(self, table: Table, lines: list[str]) -> None:
        """Refuse a file of which no line that is there could be a sample, gaps apart."""
        fault = None
        for number, line in enumerate(lines[table.first :], table.first + 1):
            try:
                if line.strip():
                    self._numbers(table, line)
                    return
            except SampleError as error:
                fault = fault or self._unreadable(error.of(number), error.hint)
        if fault is not None:
            self._columns = ()
            raise fault

    def _find_columns(self, table: Table) -> None:
        """Find the columns by the names that they had, else by those of stream and recipe."""
        names, label = table.names, self._spec.label
        recipes = [one.name for one in self._data.features]
        wanted = list(self._spec.features) or (recipes if set(recipes) <= set(names) else [])
        if self._names and names:
            *wanted, label = self._names
        for name in wanted:
            if (count := names.count(name)) != 1:
                hint = "have the file's first line name each column once, and write these names"
                what = f"{count} columns" if count else "no column"
                raise StreamError("features", f"{what} {name!r}", hint)
        at = _column_of(label, table)
        columns = tuple(map(names.index, wanted)) or tuple(i for i in table.columns if i != at)
        if not columns:
            raise self._unreadable("has one column only", "write features and a label")
        every = columns if at is None else (*columns, at)
        found = [table.name(i) for i in every]
        meaning = _digest(repr((found, at is None)).encode())
        if self._meaning not in ("", meaning):
            reason = f"had other columns before; now they are {', '.join(found)}"
            hint = "write names and units as before, or have the stream read another file"
            raise self._unreadable(reason, hint)
        self._found, self._columns, self._label = meaning, columns, at
        self._features = len(columns)
        if names:
            self._names = (*(names[i] for i in columns), "none" if at is None else names[at])

    def _names_columns(self, line: str) -> bool:
        """Tell whether a line in the middle has names again, as where a logger began anew."""
        try:
            return bool(set(Table.learn([line]).names) & set(self._names))
        except SampleError:
            return False

    # ------------------------------------------------------------------ lines

    def _read_on(self, rows: deque[Row]) -> None:
        file = self._file
        if file is None:
            return
        if self._before(file) != self._tail:
            self._begin("truncated")
        # Names may come before units, and both before samples.
        if not (self._read or self._learn(file)):
            return
        assert self._table is not None
        skipped = self._table.first if self._offset == self._start else 0
        size = os.fstat(file.fileno()).st_size
        if size - self._offset > MAX_BACKLOG_BYTES:
            self._counters["skipped_bytes"] += size - MAX_BACKLOG_BYTES - self._offset
            self._offset = size - MAX_BACKLOG_BYTES
            self._tail = self._before(file)
        if self._tail and not self._tail.endswith(b"\n"):
            skipped = 1  # the rest of a line
        data = os.pread(file.fileno(), size - self._offset, self._offset)
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        if not lines and len(data) > MAX_LINE_BYTES:
            self._counters["bad_too_long"] += 1
            lines, skipped = [data], 1
        at = 0
        try:
            for number, line in enumerate(lines):
                if number >= skipped and line.strip() and not self._take_line(_text(line), rows):
                    self._start, self._read = self._offset + at, False
                    self._learn(file)
                    skipped = number + self._table.first
                at += len(line)
        finally:
            self._offset, self._tail = self._offset + at, (self._tail + data[:at])[-TAIL_BYTES:]

    def _take_line(self, line: str, rows: deque[Row]) -> bool:
        """Add a sample, or count why there is none; False for a line of names."""
        table = self._table
        assert table is not None
        try:
            numbers, fields = self._numbers(table, line)
            label = math.nan
            if self._label is not None:
                name = f"column {table.name(self._label)}"
                label = label_of(fields[self._label], self._data.labels, name, table.number)
            self._keep((finite(numbers), label), rows)
            self._meaning = self._found  # not before: units may come behind names
        except SampleError as error:
            if error.why in ("bad_columns", "bad_number") and self._names_columns(line):
                return False
            self._refuse(error)
        return True

    def _numbers(self, table: Table, line: str) -> tuple[list[float], list[str]]:
        """Return a line's features, NaN for gaps, and all fields."""
        fields = [field or "nan" for field in table.fields(line)]
        return table.numbers(fields, self._columns), fields


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        return line.decode("latin-1")  # a degree sign of an older tool


def _column_of(label: str, table: Table) -> int | None:
    """Return the column of the label; None if it is left out."""
    if label in table.names:
        return table.names.index(label)
    if label == "none":
        return None
    if label in ("first", "last") and table.columns:
        return table.columns[-1 if label == "last" else 0]
    if label.isdecimal() and int(label) < table.width:
        return int(label)
    raise StreamError("label", f"no column {label!r}", "name a column, first, last or none")
