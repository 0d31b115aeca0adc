"""The schema of the coordinator's database: one version, and a way from each former one.

Money is integers. The ledger (`entries`) can only be appended to; what a round
decided and how each client ended it never changes; a round leaves ``open`` once.
Triggers hold this even against our own code; rows leave only with the closed books of their round.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from fedagent_coordinator.errors import SchemaVersionError

VERSION = 12
"""In `PRAGMA user_version`; before 7 there was a table of migrations in its place."""

_RUNS = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO meta VALUES ('commits', 0);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    recipe_digest TEXT NOT NULL,
    recipe TEXT NOT NULL,
    seed INTEGER NOT NULL,
    unlimited INTEGER NOT NULL CHECK (unlimited IN (0, 1)),
    -- Digest of the model that the run begins from; empty for that of the seed.
    origin TEXT NOT NULL CHECK (length(origin) IN (0, 64)),
    begun_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    end_reason TEXT
) STRICT, WITHOUT ROWID;
-- The recipe with what features are scaled by, and on whose samples that rests.
CREATE TABLE standardized (
    run_id TEXT PRIMARY KEY REFERENCES runs,
    recipe TEXT NOT NULL,
    agents INTEGER NOT NULL CHECK (agents >= 1),
    samples INTEGER NOT NULL CHECK (samples >= 1)
) STRICT, WITHOUT ROWID;
-- A run that had ended went on for more rounds.
CREATE TABLE extensions (
    run_id TEXT NOT NULL REFERENCES runs,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    after INTEGER NOT NULL CHECK (after >= 0),
    count INTEGER NOT NULL CHECK (count > after),
    ended_ms INTEGER NOT NULL,
    end_reason TEXT,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE clients (
    run_id TEXT NOT NULL REFERENCES runs,
    idx INTEGER NOT NULL CHECK (idx >= 0),
    agent_id TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, idx), UNIQUE (run_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE edges (
    run_id TEXT NOT NULL REFERENCES runs,
    idx INTEGER NOT NULL CHECK (idx >= 0),
    edge_id TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
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
    rented_edge INTEGER,
    rent_micro INTEGER NOT NULL CHECK (rent_micro >= 0),
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
CREATE TABLE edge_budgets (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    edge INTEGER NOT NULL,
    budget_micro INTEGER NOT NULL CHECK (budget_micro >= 0),
    reserved_micro INTEGER NOT NULL CHECK (reserved_micro BETWEEN 0 AND budget_micro),
    PRIMARY KEY (run_id, round, edge),
    FOREIGN KEY (run_id, round) REFERENCES rounds,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
CREATE TABLE reservations (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL, edge INTEGER NOT NULL,
    price_micro INTEGER NOT NULL CHECK (price_micro >= 0),
    context_seq INTEGER NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round) REFERENCES rounds,
    FOREIGN KEY (run_id, client) REFERENCES clients,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
-- How a reservation ended; NULL is what is not known.
CREATE TABLE outcomes (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    in_time INTEGER NOT NULL CHECK (in_time IN (0, 1)),
    used INTEGER NOT NULL CHECK (used IN (0, 1)),
    void INTEGER NOT NULL CHECK (void IN (0, 1)),
    censored INTEGER NOT NULL CHECK (censored IN (0, 1)),
    tau_s REAL NOT NULL, dt_s REAL, lc_s REAL, ut_s REAL,
    num_samples INTEGER NOT NULL, arrivals INTEGER NOT NULL,
    steps INTEGER, iterations INTEGER, train_s REAL, seconds_per_iteration REAL,
    loss_rms REAL, weight REAL, norm REAL, loss REAL,
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round, client) REFERENCES reservations
) STRICT, WITHOUT ROWID;
CREATE TABLE edge_results (
    run_id TEXT NOT NULL, round INTEGER NOT NULL, edge INTEGER NOT NULL,
    failed TEXT NOT NULL, model TEXT NOT NULL, weight REAL NOT NULL,
    local_steps REAL NOT NULL CHECK (local_steps >= 0),
    PRIMARY KEY (run_id, round, edge),
    FOREIGN KEY (run_id, round) REFERENCES rounds,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
-- Up to which round what an edge has learnt counts in no merge.
CREATE TABLE forgotten (
    run_id TEXT NOT NULL, edge INTEGER NOT NULL,
    round INTEGER NOT NULL CHECK (round >= 0),
    PRIMARY KEY (run_id, edge, round),
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
"""

_MONEY = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY CHECK (seq >= 1),
    run_id TEXT REFERENCES runs,
    round INTEGER,
    kind TEXT NOT NULL CHECK (kind IN ('grant', 'reserve', 'settle', 'void', 'note', 'fact')),
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    edge INTEGER,
    client INTEGER,
    amount_micro INTEGER NOT NULL CHECK (amount_micro >= 0),
    key TEXT NOT NULL UNIQUE,
    at_ms INTEGER NOT NULL,
    -- Id of the agent, or of the edge that is rented.
    payee TEXT NOT NULL,
    -- Digest of what a fact binds, or of the proof of the work that is paid; else empty.
    facts BLOB NOT NULL CHECK (length(facts) IN (0, 32)),
    prev_hash BLOB NOT NULL CHECK (length(prev_hash) = 32),
    hash BLOB NOT NULL CHECK (length(hash) = 32),
    CHECK (kind <> 'grant' OR amount_micro > 0)
) STRICT;
CREATE INDEX entries_by_round ON entries (run_id, round);
-- What an agent signed of the work that it was paid for (fedagent_protocol/signed.py).
CREATE TABLE proofs (
    run_id TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL,
    claim BLOB NOT NULL,
    public BLOB NOT NULL CHECK (length(public) = 32),
    signature BLOB NOT NULL CHECK (length(signature) = 64),
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round, client) REFERENCES reservations
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
    run_id TEXT NOT NULL REFERENCES runs,
    account TEXT NOT NULL,
    balance_micro INTEGER NOT NULL CHECK (balance_micro >= 0),
    PRIMARY KEY (run_id, account)
) STRICT, WITHOUT ROWID;
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
) STRICT;
CREATE TABLE snapshots (
    run_id TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL CHECK (round >= 0),
    policy TEXT NOT NULL,
    state BLOB NOT NULL,
    state_sha256 BLOB NOT NULL,
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
CREATE TABLE opinions (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL, edge INTEGER NOT NULL,
    score REAL NOT NULL CHECK (score BETWEEN 0 AND 1),
    samples INTEGER NOT NULL CHECK (samples > 0),
    epsilon REAL NOT NULL CHECK (epsilon >= 0),
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round) REFERENCES evaluations,
    FOREIGN KEY (run_id, client) REFERENCES clients,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
CREATE TABLE volunteers (
    run_id TEXT NOT NULL, round INTEGER NOT NULL,
    client INTEGER NOT NULL, edge INTEGER NOT NULL,
    PRIMARY KEY (run_id, round, client),
    FOREIGN KEY (run_id, round) REFERENCES evaluations,
    FOREIGN KEY (run_id, client) REFERENCES clients,
    FOREIGN KEY (run_id, edge) REFERENCES edges
) STRICT, WITHOUT ROWID;
"""

_PRUNED = """
-- Rounds from `first` to `round`: what they saw and decided is gone.
CREATE TABLE pruned (
    run_id TEXT NOT NULL REFERENCES runs,
    first INTEGER NOT NULL CHECK (first >= 1),
    round INTEGER NOT NULL CHECK (round >= first),
    by TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;
"""

_CLOSED = """
-- Rounds from `first` to `round` are in a file of the archive, with their entries (`archives.py`).
CREATE TABLE closed (
    run_id TEXT NOT NULL REFERENCES runs,
    first INTEGER NOT NULL CHECK (first >= 1),
    round INTEGER NOT NULL CHECK (round >= first),
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    size_bytes INTEGER NOT NULL CHECK (size_bytes > 0),
    summary BLOB NOT NULL,
    by TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER closed_in_order BEFORE INSERT ON closed
    WHEN NEW.first <> 1 + (SELECT COALESCE(MAX(round), 0) FROM closed WHERE run_id = NEW.run_id)
    BEGIN SELECT RAISE(ABORT, 'rounds are closed in their order'); END;
"""

_ROUNDS_END_ONCE = """
CREATE TRIGGER rounds_end_once BEFORE UPDATE ON rounds
    WHEN (OLD.state <> 'open' OR NEW.state = 'open'
        OR OLD.run_id <> NEW.run_id OR OLD.round <> NEW.round
        OR OLD.view <> NEW.view OR OLD.policy <> NEW.policy
        OR OLD.selection <> NEW.selection OR OLD.controls <> NEW.controls
        OR OLD.rented_edge IS NOT NEW.rented_edge OR OLD.rent_micro <> NEW.rent_micro)
        AND NOT (NEW.view = x'' AND NEW.selection = x'' AND NEW.controls = x''
            AND (OLD.run_id, OLD.round, OLD.state, OLD.policy, OLD.rented_edge, OLD.rent_micro,
                OLD.psi, OLD.reason, OLD.timing, OLD.opened_ms, OLD.closed_ms)
            IS (NEW.run_id, NEW.round, NEW.state, NEW.policy, NEW.rented_edge, NEW.rent_micro,
                NEW.psi, NEW.reason, NEW.timing, NEW.opened_ms, NEW.closed_ms)
            AND OLD.state <> 'open' AND EXISTS (
                SELECT 1 FROM pruned p WHERE p.run_id = OLD.run_id
                AND p.round >= OLD.round AND p.first <= OLD.round))
    BEGIN SELECT RAISE(ABORT, 'a round ends exactly once'); END;
"""

_ONCE = """
CREATE TRIGGER runs_end_once BEFORE UPDATE ON runs
    WHEN OLD.run_id <> NEW.run_id OR OLD.recipe <> NEW.recipe OR OLD.origin <> NEW.origin
        OR (OLD.ended_ms IS NOT NULL AND (NEW.ended_ms IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM extensions e
            WHERE e.run_id = OLD.run_id AND e.ended_ms = OLD.ended_ms)))
    BEGIN SELECT RAISE(ABORT, 'a run that ended goes on by an extension only'); END;
"""

_APPEND_ONLY = (
    *("standardized", "extensions", "reservations", "edge_budgets", "outcomes", "edge_results"),
    *("forgotten", "entries", "proofs", "evaluations", "opinions", "volunteers"),
)
_IS_CLOSED = """EXISTS (SELECT 1 FROM closed k WHERE k.run_id = {0}.run_id
    AND k.round >= {0}.round AND k.first <= {0}.round)"""
_MOVES = "{0}.source NOT IN ('forgotten', 'closed')"


def _never(verb: str, table: str) -> str:
    """Return a trigger that refuses to change rows of a table, or to delete them."""
    return (
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} can only be appended to'); END"
    )


def _leaves(table: str, what: str) -> str:
    """Return a trigger by which rows go with the closed books of their round, and never else."""
    moves = f"AND {_MOVES.format('OLD')}" if table == "entries" else ""
    return (
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
        f"WHEN NOT ({_IS_CLOSED.format('OLD')} {moves}) "
        f"BEGIN SELECT RAISE(ABORT, '{what}'); END"
    )


def _stays_out(table: str) -> str:
    """Return a trigger by which nothing is added to a round whose books are closed."""
    moves = f"AND {_MOVES.format('NEW')}" if table == "entries" else ""
    return (
        f"CREATE TRIGGER {table}_no_insert BEFORE INSERT ON {table} "
        f"WHEN {_IS_CLOSED.format('NEW')} {moves} "
        "BEGIN SELECT RAISE(ABORT, 'the books of this round are closed'); END"
    )


_LEAVING = (
    *("pruned", "edge_budgets", "reservations", "outcomes", "edge_results", "proofs", "entries"),
    *("opinions", "volunteers"),
)
"""Tables whose rows go with the closed books of their round."""
_STAYING = tuple(table for table in (*_APPEND_ONLY, "closed") if table not in _LEAVING)
_TRIGGERS = (
    *(_never("UPDATE", table) for table in (*_STAYING, *_LEAVING)),
    *(_never("DELETE", table) for table in _STAYING),
    *(_leaves(table, f"{table} can only be appended to") for table in _LEAVING),
    _leaves("rounds", "rounds are never deleted"),
    *(_stays_out(table) for table in ("rounds", "entries", "opinions", "volunteers")),
)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty database; nothing is done with one that has it.

    Raises:
        SchemaVersionError: Another version of fedagent wrote it.
        sqlite3.DatabaseError: It is damaged, or no coordinator's.
    """
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
        check_version(connection, path)
        return
    tables = (_RUNS, _ROUNDS, _MONEY, _MODELS, _PRUNED, _CLOSED)
    _run(connection, (*tables, _ROUNDS_END_ONCE, _ONCE, *_TRIGGERS))


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database that another version of fedagent wrote.

    Raises:
        SchemaVersionError: It did.
        sqlite3.DatabaseError: It is damaged, or no coordinator's.
    """
    connection.execute("SELECT 1 FROM runs LIMIT 0")  # fails where it is no coordinator's
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found != VERSION:
        raise SchemaVersionError(path, found, VERSION)


def has_changed(connection: sqlite3.Connection) -> bool:
    """Return whether tables or triggers are others than this release makes."""
    query = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    with closing(sqlite3.connect(":memory:")) as fresh:
        prepare(fresh, "")
        wanted = fresh.execute(query).fetchall()
    return [tuple(row) for row in connection.execute(query)] != wanted


def _run(connection: sqlite3.Connection, statements: Sequence[str]) -> None:
    body = ";\n".join(statements)
    connection.executescript(f"BEGIN IMMEDIATE; {body}; PRAGMA user_version = {VERSION}; COMMIT")
