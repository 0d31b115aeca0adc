"""What a database says that is damaged, and what one says whose disk is."""

import sqlite3

import msgspec

DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Raised by any query on damaged pages; the second by sqlite3's own words about them."""
MISREAD = (*DAMAGE, msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError)
"""Raised by whoever makes a record of a damaged row."""
_DISK = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def refused_by_disk(error: Exception) -> bool:
    """Return whether the disk did not do its part; the database may be whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK
