"""A CSV file that is being appended; its lines are samples, and so never logged."""

import math
import os
from collections import deque
from collections.abc import Sequence
from io import FileIO

from .base import BadSampleError, ResumableStream, RowReader, Samples, StreamSchema
from .kinds import Csv
from .spec import StreamError, number

MAX_LINE_BYTES = 1 << 20
MAX_BACKLOG_BYTES = 4 << 20
"""Most unread bytes that a take parses; of more, only the newest are read."""


class CsvStream(ResumableStream):
    """Follow a CSV file.

    The last line counts when its line end is there. A file that shrinks is read
    from its beginning; one that is replaced is read to its end first. The offset is the byte
    behind the last line that was read.
    """

    def __init__(
        self, spec: Csv, *, seed: int = 0, offset: int = 0, labels: Sequence[str] = ()
    ) -> None:
        del seed
        super().__init__(offset)
        self._spec = spec
        self._reader = RowReader(dtype=spec.dtype, labels=labels)
        self._file: FileIO | None = None
        self._header = b""
        self._width = 0
        self._names: list[str] = []
        self._columns: tuple[int, ...] = ()
        self._label: int | None = 0
        self._mid_line = False

    def open(self, now: float) -> StreamSchema:
        """Read the first line to learn the columns."""
        del now
        self._file = self._reopen()
        if self._file is None:
            raise self._unreadable("there is no such file", "check the path")
        first, line_end, _ = self._file.read(MAX_LINE_BYTES).partition(b"\n")
        if not line_end:
            self.close()
            raise self._unreadable("has no complete line yet", "start once it has one")
        try:
            self._learn_columns(first)
        except StreamError:
            self.close()
            raise
        if self._offset > os.fstat(self._file.fileno()).st_size:
            self._offset = 0
        names = tuple(self._names[i] for i in self._columns) if self._header else ()
        return StreamSchema(len(self._columns), self._spec.dtype, names=names)

    def take(self, now: float) -> Samples:
        """Return the whole lines that were appended."""
        del now
        rows: deque[tuple[list[float], float]] = deque(maxlen=self._spec.buffer)
        self._read_on(rows)
        if self._was_replaced():
            self._read_on(rows)  # what came between the read and the rename
            self.close()
            self._file = self._reopen()
            self._offset, self._mid_line = 0, False
            self._counters["rotated"] += 1
            self._read_on(rows)
        return self._reader.samples(rows, len(self._columns))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reopen(self) -> FileIO | None:
        """Return the file, or None while there is none."""
        try:
            # Unbuffered: what was read before a truncation must not come again.
            return self._spec.file.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error.strerror or "cannot be read", "check the path") from error

    def _unreadable(self, reason: str, hint: str) -> StreamError:
        return StreamError("csv", reason, hint, str(self._spec.file))

    def _was_replaced(self) -> bool:
        if self._file is None:
            return self._spec.file.exists()
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._spec.file.stat())
        except OSError:
            return False  # renamed away, and the new one is not there yet

    def _read_on(self, rows: deque[tuple[list[float], float]]) -> None:
        if self._file is None:
            return
        size = os.fstat(self._file.fileno()).st_size
        if size < self._offset:
            self._counters["truncated"] += 1
            self._offset, self._mid_line = 0, False
        if size - self._offset > MAX_BACKLOG_BYTES:
            self._counters["skipped_bytes"] += size - MAX_BACKLOG_BYTES - self._offset
            self._offset, self._mid_line = size - MAX_BACKLOG_BYTES, True
        self._file.seek(self._offset)
        data = self._file.read(size - self._offset)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_LINE_BYTES:
            self._counters["bad_too_long"] += 1
            self._offset, self._mid_line = self._offset + len(data), True
            return
        at_start = self._offset == 0
        self._offset += whole
        lines = data[:whole].splitlines()
        if self._mid_line and lines:
            del lines[0]
            self._mid_line = False
        elif at_start and lines and self._header and lines[0].strip() == self._header:
            del lines[0]
        for line in lines:
            self._take_line(line, rows)

    def _take_line(self, line: bytes, rows: deque[tuple[list[float], float]]) -> None:
        if not line.strip():
            return
        try:
            row = self._read_line(line)
        except BadSampleError as error:
            self._counters[error.reason] += 1
        else:
            self._counters["dropped"] += len(rows) == rows.maxlen
            rows.append(row)

    def _read_line(self, line: bytes) -> tuple[list[float], float]:
        try:
            fields = line.decode("utf-8").split(",")
        except UnicodeDecodeError as error:
            raise BadSampleError("bad_encoding") from error
        if len(fields) != self._width:
            raise BadSampleError("bad_columns")
        features = self._reader.features([fields[i] for i in self._columns])
        return features, math.nan if self._label is None else self._reader.label(
            fields[self._label]
        )

    def _learn_columns(self, first: bytes) -> None:
        names = [name.strip() for name in first.decode("utf-8", "replace").strip().split(",")]
        self._names, self._width = names, len(names)
        self._header = b"" if any(number(name) is not None for name in names) else first.strip()
        label = self._spec.label
        ends = {"last": self._width - 1, "first": 0}
        if label in names and self._header:
            self._label = names.index(label)
        elif label == "none":
            self._label = None
        elif label in ends or (label.isdigit() and int(label) < self._width):
            self._label = ends.get(label, int(label) if label.isdigit() else 0)
        else:
            raise StreamError("label", f"no column {label!r}", "name a column, first, last or none")
        missing = [name for name in self._spec.features if name not in names]
        if missing:
            raise StreamError("features", f"no column {missing[0]!r}", "name columns of line 1")
        others = tuple(i for i in range(self._width) if i != self._label)
        self._columns = tuple(map(names.index, self._spec.features)) or others
        if not self._columns:
            raise self._unreadable("has one column only", "write features and a label")
