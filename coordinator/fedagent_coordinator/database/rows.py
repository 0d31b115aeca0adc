"""Rows of a query as records: a column is named like the field that it fills."""

import sqlite3
from collections.abc import Sequence
from typing import TypeVar

import msgspec

Record = TypeVar("Record")


def fetch(
    sql: sqlite3.Connection, kind: type[Record], query: str, values: Sequence[object] = ()
) -> list[Record]:
    """Return what a query finds.

    Raises:
        msgspec.ValidationError: A value does not fit its field.
    """
    found = [dict(row) for row in sql.execute(query, values)]
    # Not strict: SQLite has 0 and 1 for a bool.
    return msgspec.convert(found, list[kind], strict=False)  # type: ignore[valid-type]  # checked at run time
