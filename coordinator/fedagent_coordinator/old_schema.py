"""Reading a database that an older release wrote, without changing it."""

import sqlite3

NEWEST = "m006_standardized"
"""The last migration; named here because `migrations` takes half a second to import."""


def as_of_today(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return the connection, or one to a copy in memory that has today's schema.

    A run that has ended is never opened by a coordinator again, which would bring the file
    itself up to date; and a reader may run beside a coordinator of that older release.

    Args:
        connection: To a coordinator's database; closed if a copy takes its place.
    """
    found = "SELECT 1 FROM sqlite_master WHERE name = '_sqlite_migrations'"
    applied = "SELECT 1 FROM _sqlite_migrations WHERE name = ?"
    if connection.execute(found).fetchone() is None:
        return connection
    if connection.execute(applied, (NEWEST,)).fetchone() is not None:
        return connection
    from sqlite_utils import Database  # noqa: PLC0415 - slow, and for old databases only

    from .migrations import migrations  # noqa: PLC0415

    copy = sqlite3.connect(":memory:")
    try:
        connection.backup(copy)
        migrations.apply(Database(copy))
    except BaseException:
        copy.close()
        raise
    connection.close()
    return copy
