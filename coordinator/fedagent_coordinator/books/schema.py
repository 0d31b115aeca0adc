"""The schema of the coordinator's database; there is one version of it.

Money is integers. The ledger (`entries`) can only be appended to, and what it binds of a round is
found to be other than it was by `audit`. The database itself holds that no balance falls below
zero, and that a round begins and ends once.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedagent_coordinator.errors import StoreDamagedError, StoreError, StoreFailedError

DATABASE = "coordinator.db"
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Raised by queries on damaged pages; the second where sqlite quotes them in its words."""
_MISREAD = (ValueError, TypeError, LookupError, OverflowError)
"""Raised by code that makes something of a row that is not what was written."""
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
VERSION = 17
"""In `PRAGMA user_version`."""
PAGE_BYTES = 2048
"""A transaction writes whole pages, most of them for one short row."""

_RUNS = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    recipe_digest TEXT NOT NULL,
    recipe TEXT NOT NULL,
    -- The recipe with what features are scaled by, once that is known.
    scaled TEXT,
    -- Rounds that the run is to have, once it was extended.
    extended INTEGER CHECK (extended >= 1),
    seed INTEGER NOT NULL,
    unlimited INTEGER NOT NULL CHECK (unlimited IN (0, 1)),
    -- Digest of the model that the run begins from; empty for that of the seed.
    origin TEXT NOT NULL CHECK (length(origin) IN (0, 64)),
    begun_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    end_reason TEXT
) STRICT, WITHOUT ROWID;
-- Who is meant by an index, and what it did in all rounds.
CREATE TABLE clients (
    run_id TEXT NOT NULL REFERENCES runs,
    idx INTEGER NOT NULL CHECK (idx >= 0),
    agent_id TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
    ordered INTEGER NOT NULL DEFAULT 0,
    in_time INTEGER NOT NULL DEFAULT 0,
    used INTEGER NOT NULL DEFAULT 0,
    paid INTEGER NOT NULL DEFAULT 0,
    paid_micro INTEGER NOT NULL DEFAULT 0,
    -- Updates that may have left it.
    released INTEGER NOT NULL DEFAULT 0,
    last_round INTEGER,
    last_status TEXT,
    last_reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, idx), UNIQUE (run_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE edges (
    run_id TEXT NOT NULL REFERENCES runs,
    idx INTEGER NOT NULL CHECK (idx >= 0),
    edge_id TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
    ordered INTEGER NOT NULL DEFAULT 0,
    in_time INTEGER NOT NULL DEFAULT 0,
    spent_micro INTEGER NOT NULL DEFAULT 0,
    rent_micro INTEGER NOT NULL DEFAULT 0,
    last_round INTEGER NOT NULL DEFAULT 0,
    failed TEXT NOT NULL DEFAULT '',
    -- Up to this round what it has learnt counts in no merge.
    forgotten INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, idx), UNIQUE (run_id, edge_id)
) STRICT, WITHOUT ROWID;
"""

_ROUNDS = """
CREATE TABLE rounds (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL CHECK (round >= 1),
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'void')),
    policy TEXT NOT NULL,
    view BLOB NOT NULL,
    selection BLOB NOT NULL,
    -- Iterations, and what the placement saw; empty in a round with neither.
    controls BLOB NOT NULL,
    -- Digest of these three, which a round that is closed has no more.
    saw BLOB NOT NULL CHECK (length(saw) = 32),
    ordered INTEGER NOT NULL CHECK (ordered >= 0),
    -- Prices of its orders, and the rent.
    reserved_micro INTEGER NOT NULL CHECK (reserved_micro >= rent_micro),
    rented_edge INTEGER,
    rent_micro INTEGER NOT NULL CHECK (rent_micro >= 0),
    rent_paid_micro INTEGER NOT NULL DEFAULT 0 CHECK (rent_paid_micro IN (0, rent_micro)),
    psi REAL,
    reason TEXT NOT NULL DEFAULT '',
    timing TEXT NOT NULL DEFAULT '{}',
    opened_ms INTEGER NOT NULL,
    closed_ms INTEGER,
    PRIMARY KEY (run_id, round),
    FOREIGN KEY (run_id, rented_edge) REFERENCES edges,
    CHECK (rented_edge IS NOT NULL OR rent_micro = 0),
    CHECK ((state = 'open') = (closed_ms IS NULL))
) STRICT;
-- What a round ordered of a client, and how that ended; written when the round ends.
-- NULL is unknown, and all of a void round.
CREATE TABLE orders (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL, edge INTEGER NOT NULL,
    place INTEGER NOT NULL,
    price_micro INTEGER NOT NULL CHECK (price_micro >= 0),
    status TEXT,
    reason TEXT,
    in_time INTEGER CHECK (in_time IN (0, 1)),
    used INTEGER CHECK (used IN (0, 1)),
    unpaid INTEGER CHECK (unpaid IN (0, 1) AND NOT (unpaid AND (in_time OR used))),
    censored INTEGER CHECK (censored IN (0, 1)),
    tau_s REAL, dt_s REAL, lc_s REAL, ut_s REAL,
    num_samples INTEGER, arrivals INTEGER,
    steps INTEGER, iterations INTEGER, train_s REAL, seconds_per_iteration REAL,
    loss_rms REAL, weight REAL, norm REAL, loss REAL,
    -- What the agent signed of the work that it was paid for (fedagent_protocol/signed.py).
    claim BLOB,
    public BLOB CHECK (length(public) = 32),
    signature BLOB CHECK (length(signature) = 64),
    FOREIGN KEY (run_id, round) REFERENCES rounds,
    FOREIGN KEY (run_id, client) REFERENCES clients,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT;
-- Of few runs each has such a round; the ids of runs would take more room than all else.
CREATE INDEX orders_of ON orders (round);
CREATE TABLE edge_results (
    run_id TEXT NOT NULL, round INTEGER NOT NULL, edge INTEGER NOT NULL,
    failed TEXT NOT NULL, model TEXT NOT NULL, weight REAL NOT NULL,
    local_steps REAL NOT NULL CHECK (local_steps >= 0), norm REAL NOT NULL,
    PRIMARY KEY (run_id, round, edge),
    FOREIGN KEY (run_id, round) REFERENCES rounds,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
-- Rounds from `first` to `last`: their orders are in the archive, what they saw is gone.
CREATE TABLE closed (
    run_id TEXT NOT NULL REFERENCES runs,
    first INTEGER NOT NULL CHECK (first >= 1),
    last INTEGER NOT NULL CHECK (last >= first),
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    by TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (run_id, first)
) STRICT, WITHOUT ROWID;
"""

_MONEY = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY CHECK (seq >= 1),
    run_id TEXT REFERENCES runs,
    round INTEGER,
    kind TEXT NOT NULL,
    amount_micro INTEGER NOT NULL CHECK (amount_micro >= 0),
    -- Digest of the rows that it binds (`ledger.digest_of`).
    digest BLOB NOT NULL CHECK (length(digest) IN (0, 32)),
    note TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    -- Where the money of the run is after it.
    granted_micro INTEGER NOT NULL,
    free_micro INTEGER NOT NULL CHECK (free_micro >= 0),
    reserved_micro INTEGER NOT NULL CHECK (reserved_micro >= 0),
    settled_micro INTEGER NOT NULL CHECK (settled_micro >= 0),
    voided_micro INTEGER NOT NULL CHECK (voided_micro >= 0),
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    CHECK (granted_micro = free_micro + reserved_micro + settled_micro)
) STRICT;
CREATE UNIQUE INDEX a_round_ends_once ON entries (run_id, round) WHERE kind IN ('settle', 'void');
CREATE INDEX notes ON entries (seq) WHERE kind IN ('note', 'accept');
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries can only be appended to'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries can only be appended to'); END;
"""

_MODELS = """
CREATE TABLE models (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL CHECK (round >= 0),
    digest TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    at_ms INTEGER NOT NULL,
    -- Digest of what the strategy's server optimiser knew after the merge; empty for nothing.
    state TEXT NOT NULL CHECK (length(state) IN (0, 64)),
    PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;
CREATE TABLE metrics (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,
    digest TEXT NOT NULL,
    metric TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (run_id, round, metric)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL CHECK (round >= 0),
    state BLOB NOT NULL,
    PRIMARY KEY (run_id, round)
) STRICT;
-- One call of the clients to evaluate a model, and how it ended.
CREATE TABLE evaluations (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL CHECK (round >= 0),
    slot INTEGER NOT NULL CHECK (slot >= 1),
    mode TEXT NOT NULL CHECK (mode IN ('report', 'peers')),
    digest TEXT NOT NULL,
    metric TEXT NOT NULL,
    asked INTEGER NOT NULL CHECK (asked >= answered),
    answered INTEGER NOT NULL CHECK (answered >= 0),
    mean REAL CHECK (mean BETWEEN 0 AND 1),
    reasons TEXT NOT NULL,
    seconds REAL NOT NULL CHECK (seconds >= 0),
    PRIMARY KEY (run_id, round),
    CHECK (mode = 'report' OR mean IS NULL)
) STRICT, WITHOUT ROWID;
-- A client's opinion, or that it volunteered, which has no score.
CREATE TABLE answers (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL, edge INTEGER NOT NULL,
    score REAL CHECK (score BETWEEN 0 AND 1),
    samples INTEGER CHECK (samples > 0),
    epsilon REAL CHECK (epsilon >= 0),
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round) REFERENCES evaluations,
    FOREIGN KEY (run_id, client) REFERENCES clients,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
"""


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty database; nothing is done with one that has it.

    Raises:
        StoreDamagedError: Another version of fedagent wrote it.
        sqlite3.DatabaseError: It is damaged, or no coordinator's.
    """
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
        check_version(connection, path)
        return
    body = "\n".join((_RUNS, _ROUNDS, _MONEY, _MODELS))
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.executescript(f"BEGIN IMMEDIATE; {body} PRAGMA user_version = {VERSION}; COMMIT")


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database that another version of fedagent wrote; see `prepare`."""
    connection.execute("SELECT 1 FROM runs LIMIT 0")  # fails where it is no coordinator's
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found != VERSION:
        problem = f"was written by another fedagent (schema {found}; this one has {VERSION})"
        hint = "continue with that version, or start fresh in another --data-dir"
        raise StoreDamagedError(path, problem, hint)


def one_line(error: object) -> str:
    """Return what sqlite says of a damaged database."""
    return f"is damaged ({' '.join(str(error).split())})"


def refused_by_disk(error: BaseException) -> bool:
    """Return whether the disk did not do its part; the database may be whole."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK


def store_error(error: BaseException, path: Path) -> StoreError:
    """Return what `DAMAGE` means to who writes: a disk that failed, or a damaged database."""
    if refused_by_disk(error):
        return StoreFailedError(str(error))
    return StoreDamagedError(str(path), one_line(error))


@contextmanager
def finding_damage(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Raise `StoreDamagedError` where a damaged database is why the body fails.

    An error that a mistake of ours may have made as well is put down to damage only
    where the database itself says so.
    """
    try:
        yield
    except DAMAGE as error:
        if refused_by_disk(error):
            raise
        raise StoreDamagedError(str(path), one_line(error)) from error
    except _MISREAD as error:
        try:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except DAMAGE as second:
            found = str(second)
        if found == "ok":
            raise
        raise StoreDamagedError(str(path), one_line(found)) from error
