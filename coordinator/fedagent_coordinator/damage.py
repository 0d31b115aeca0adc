"""What a database says that is damaged, and what one says whose disk is."""

import sqlite3

DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Raised by queries on damaged pages; the second where sqlite quotes them in its words."""
_MISREAD = (ValueError, TypeError, LookupError, OverflowError)
"""Raised by whoever makes something of a row that is not what was written."""
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


def refused_by_disk(error: BaseException) -> bool:
    """Return whether the disk did not do its part; the database may be whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK


def damage_behind(error: Exception, connection: sqlite3.Connection) -> str:
    """Return what is damaged if that is why a reader failed; empty if it is not.

    An error that a mistake of ours may have made as well is put down to damage only
    where the database itself says so.
    """
    if isinstance(error, DAMAGE):
        return "" if refused_by_disk(error) else " ".join(str(error).split())
    return _complaint(connection) if isinstance(error, _MISREAD) else ""


def _complaint(connection: sqlite3.Connection) -> str:
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except DAMAGE as error:
        said = str(error)
    return "" if said == "ok" else " ".join(str(said).split())
