"""The bytes of closed books: the rows of some rounds of a run, by column, deflated.

A segment knows names of tables and columns, and nothing of what they mean. Of the ledger's entries
it has everything but their hashes, which follow from the entry before (`ledger.chain_hash`).
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fedagent_coordinator.errors import OversizedBooksError, RecordError

_CELLS = {int, float, str, bytes, type(None)}

_MAGIC = b"fedagent-books/1\n"
_MOST_BYTES = 1 << 28
"""Of what a segment is inflated to, at a kilobyte for each device of each round."""
MOST_BYTES_BOUND = 1 << 34
"""Of one whose digest is in the ledger, which was written here."""


class Table(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one table; the columns are in the order of their names."""

    names: tuple[str, ...]
    columns: tuple[list[Any], ...]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns}
        if len(self.columns) != len(self.names) or len(lengths) > 1:
            raise ValueError("columns do not fit together")
        if not {type(cell) for column in self.columns for cell in column} <= _CELLS:
            raise ValueError("a cell that no table has")

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows in their order."""
        return zip(*self.columns, strict=True)


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds `first` to `last` of a run."""

    run_id: str
    first: int
    last: int
    tables: dict[str, Table]


def table_of(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Table:
    """Return rows as columns."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return Table(tuple(names), tuple(columns))


def encode(segment: Segment) -> bytes:
    """Return the bytes of a segment; the same rows always give the same.

    Raises:
        OversizedBooksError: `decode` would refuse them.
    """
    body = msgspec.msgpack.encode(segment)
    if len(body) > _MOST_BYTES:
        raise OversizedBooksError(
            segment.run_id, segment.first, segment.last, len(body), _MOST_BYTES
        )
    return _MAGIC + zlib.compress(body, 6)


def decode(data: bytes, *, most_bytes: int | None = None) -> Segment:
    """Return what `encode` was given, if it inflates to no more than `most_bytes`.

    Raises:
        RecordError: These are no bytes of a segment, or too many.
    """
    if not data.startswith(_MAGIC):
        raise RecordError("closed books", "of another version, or no closed books at all")
    try:
        inflate = zlib.decompressobj()
        body = inflate.decompress(data[len(_MAGIC) :], most_bytes or _MOST_BYTES)
        segment = msgspec.msgpack.decode(body, type=Segment)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise RecordError("closed books", str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise RecordError("closed books", "cut off, or followed by something else")
    return segment
