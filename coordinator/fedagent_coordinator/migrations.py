"""Schema of the coordinator's database, as ordered migrations.

Money is integers. The ledger (`entries`) can only be appended to; what a round
decided and how each client ended it never changes; a round leaves ``open`` once.
Triggers hold this even against our own code.
"""

from sqlite_utils import Database, Migrations

migrations = Migrations("fedagent_coordinator")

_RUNS = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        recipe_digest TEXT NOT NULL,
        recipe TEXT NOT NULL,
        seed INTEGER NOT NULL,
        unlimited INTEGER NOT NULL CHECK (unlimited IN (0, 1)),
        begun_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        end_reason TEXT
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE clients (
        run_id TEXT NOT NULL REFERENCES runs,
        idx INTEGER NOT NULL CHECK (idx >= 0),
        agent_id TEXT NOT NULL,
        label TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (run_id, idx), UNIQUE (run_id, agent_id)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE edges (
        run_id TEXT NOT NULL REFERENCES runs,
        idx INTEGER NOT NULL CHECK (idx >= 0),
        edge_id TEXT NOT NULL,
        label TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (run_id, idx), UNIQUE (run_id, edge_id)
    ) STRICT, WITHOUT ROWID""",
)

_ROUNDS = (
    """CREATE TABLE rounds (
        run_id TEXT NOT NULL REFERENCES runs,
        round INTEGER NOT NULL CHECK (round >= 1),
        state TEXT NOT NULL CHECK (state IN ('open', 'done', 'void')),
        policy TEXT NOT NULL,
        ordered INTEGER NOT NULL CHECK (ordered >= 0),
        view BLOB NOT NULL,
        selection BLOB NOT NULL,
        plan_sha256 BLOB NOT NULL,
        feedback BLOB,
        feedback_sha256 BLOB,
        reason TEXT NOT NULL DEFAULT '',
        timing TEXT NOT NULL DEFAULT '{}',
        opened_ms INTEGER NOT NULL,
        closed_ms INTEGER,
        PRIMARY KEY (run_id, round),
        CHECK ((state = 'done') = (feedback IS NOT NULL)),
        CHECK ((state = 'open') = (closed_ms IS NULL))
    ) STRICT""",
    """CREATE TABLE edge_budgets (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        edge INTEGER NOT NULL,
        budget_micro INTEGER NOT NULL CHECK (budget_micro >= 0),
        reserved_micro INTEGER NOT NULL CHECK (reserved_micro BETWEEN 0 AND budget_micro),
        PRIMARY KEY (run_id, round, edge),
        FOREIGN KEY (run_id, round) REFERENCES rounds,
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE reservations (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        client INTEGER NOT NULL, edge INTEGER NOT NULL,
        price_micro INTEGER NOT NULL CHECK (price_micro >= 0),
        context_seq INTEGER NOT NULL,
        place INTEGER NOT NULL,
        PRIMARY KEY (run_id, round, client),
        FOREIGN KEY (run_id, round) REFERENCES rounds,
        FOREIGN KEY (run_id, client) REFERENCES clients,
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE outcomes (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        client INTEGER NOT NULL, edge INTEGER NOT NULL,
        status TEXT NOT NULL,
        in_time INTEGER NOT NULL CHECK (in_time IN (0, 1)),
        used INTEGER NOT NULL CHECK (used IN (0, 1)),
        paid_micro INTEGER NOT NULL CHECK (paid_micro >= 0),
        censored INTEGER NOT NULL CHECK (censored IN (0, 1)),
        tau_s REAL NOT NULL, dt_s REAL, lc_s REAL, ut_s REAL,
        num_samples INTEGER NOT NULL, arrivals INTEGER NOT NULL,
        weight REAL, norm REAL, loss REAL,
        reason TEXT NOT NULL,
        PRIMARY KEY (run_id, round, client),
        FOREIGN KEY (run_id, round, client) REFERENCES reservations
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE edge_results (
        run_id TEXT NOT NULL, round INTEGER NOT NULL, edge INTEGER NOT NULL,
        ordered INTEGER NOT NULL, in_time INTEGER NOT NULL, used INTEGER NOT NULL,
        spent_micro INTEGER NOT NULL CHECK (spent_micro >= 0),
        failed TEXT NOT NULL, model TEXT NOT NULL, weight REAL NOT NULL,
        PRIMARY KEY (run_id, round, edge),
        FOREIGN KEY (run_id, round) REFERENCES rounds
    ) STRICT, WITHOUT ROWID""",
)

_MONEY = (
    """CREATE TABLE entries (
        seq INTEGER PRIMARY KEY CHECK (seq >= 1),
        run_id TEXT REFERENCES runs,
        round INTEGER,
        kind TEXT NOT NULL CHECK (kind IN ('grant', 'reserve', 'settle', 'void', 'note')),
        source TEXT NOT NULL,
        target TEXT NOT NULL,
        edge INTEGER,
        client INTEGER,
        amount_micro INTEGER NOT NULL CHECK (amount_micro >= 0),
        key TEXT NOT NULL UNIQUE,
        at_ms INTEGER NOT NULL,
        prev_hash BLOB NOT NULL CHECK (length(prev_hash) = 32),
        hash BLOB NOT NULL CHECK (length(hash) = 32),
        CHECK (kind <> 'grant' OR amount_micro > 0)
    ) STRICT""",
    "CREATE INDEX entries_by_round ON entries (run_id, round)",
    """CREATE TABLE accounts (
        run_id TEXT NOT NULL REFERENCES runs,
        account TEXT NOT NULL,
        balance_micro INTEGER NOT NULL CHECK (balance_micro >= 0),
        PRIMARY KEY (run_id, account)
    ) STRICT, WITHOUT ROWID""",
)

_MODELS = (
    """CREATE TABLE models (
        run_id TEXT NOT NULL REFERENCES runs,
        round INTEGER NOT NULL CHECK (round >= 0),
        kind TEXT NOT NULL CHECK (kind IN ('global', 'edge')),
        edge INTEGER NOT NULL DEFAULT -1,
        digest TEXT NOT NULL,
        size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
        at_ms INTEGER NOT NULL,
        PRIMARY KEY (run_id, round, kind, edge)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE evaluations (
        run_id TEXT NOT NULL REFERENCES runs,
        round INTEGER NOT NULL,
        digest TEXT NOT NULL,
        metric TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (run_id, round, metric)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE snapshots (
        run_id TEXT NOT NULL REFERENCES runs,
        round INTEGER NOT NULL CHECK (round >= 0),
        policy TEXT NOT NULL,
        state BLOB NOT NULL,
        state_sha256 BLOB NOT NULL,
        PRIMARY KEY (run_id, round)
    ) STRICT""",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",
    "INSERT INTO meta VALUES ('commits', 0)",
)

_APPEND_ONLY = ("entries", "reservations", "edge_budgets", "outcomes", "edge_results")

_ONCE = (
    """CREATE TRIGGER rounds_end_once BEFORE UPDATE ON rounds
        WHEN OLD.state <> 'open' OR NEW.state = 'open' OR OLD.plan_sha256 <> NEW.plan_sha256
            OR OLD.view <> NEW.view OR OLD.selection <> NEW.selection
            OR OLD.run_id <> NEW.run_id OR OLD.round <> NEW.round
        BEGIN SELECT RAISE(ABORT, 'a round ends exactly once'); END""",
    """CREATE TRIGGER rounds_stay BEFORE DELETE ON rounds
        BEGIN SELECT RAISE(ABORT, 'rounds are never deleted'); END""",
    """CREATE TRIGGER runs_end_once BEFORE UPDATE ON runs
        WHEN OLD.ended_ms IS NOT NULL OR OLD.run_id <> NEW.run_id OR OLD.recipe <> NEW.recipe
        BEGIN SELECT RAISE(ABORT, 'a run ends exactly once'); END""",
)


_FORGOTTEN = """CREATE TABLE forgotten (
        run_id TEXT NOT NULL, edge INTEGER NOT NULL,
        round INTEGER NOT NULL CHECK (round >= 0),
        PRIMARY KEY (run_id, edge, round),
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID"""


@migrations()
def m001_schema(db: Database) -> None:
    """Create every table, and the triggers that protect history."""
    for statement in (*_RUNS, *_ROUNDS, *_MONEY, *_MODELS, *_ONCE):
        db.execute(statement)
    for table in _APPEND_ONLY:
        _protect(db, table)


@migrations()
def m002_forgotten(db: Database) -> None:
    """Remember up to which round what an edge has learnt counts in no merge."""
    db.execute(_FORGOTTEN)
    _protect(db, "forgotten")


_CONTROLS = """CREATE TABLE controls (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        iterations INTEGER NOT NULL CHECK (iterations >= 0),
        edge INTEGER,
        rent_micro INTEGER NOT NULL CHECK (rent_micro >= 0),
        record BLOB NOT NULL,
        PRIMARY KEY (run_id, round),
        CHECK (edge IS NOT NULL OR rent_micro = 0),
        FOREIGN KEY (run_id, round) REFERENCES rounds,
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID"""


@migrations()
def m003_controls(db: Database) -> None:
    """Keep how many iterations a round had, and which edge was rented for it."""
    db.execute(_CONTROLS)
    _protect(db, "controls")


_OPINIONS = (
    """CREATE TABLE judgements (
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
        seal BLOB NOT NULL CHECK (length(seal) = 32),
        PRIMARY KEY (run_id, round),
        CHECK (mode = 'report' OR mean IS NULL)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE opinions (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        client INTEGER NOT NULL, edge INTEGER NOT NULL,
        score REAL NOT NULL CHECK (score BETWEEN 0 AND 1),
        samples INTEGER NOT NULL CHECK (samples > 0),
        epsilon REAL NOT NULL CHECK (epsilon >= 0),
        PRIMARY KEY (run_id, round, client),
        FOREIGN KEY (run_id, round) REFERENCES judgements,
        FOREIGN KEY (run_id, client) REFERENCES clients,
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE volunteers (
        run_id TEXT NOT NULL, round INTEGER NOT NULL,
        client INTEGER NOT NULL, edge INTEGER NOT NULL,
        PRIMARY KEY (run_id, round, client),
        FOREIGN KEY (run_id, round) REFERENCES judgements,
        FOREIGN KEY (run_id, client) REFERENCES clients,
        FOREIGN KEY (run_id, edge) REFERENCES edges
    ) STRICT, WITHOUT ROWID""",
)


@migrations()
def m004_opinions(db: Database) -> None:
    """Keep what clients think of each model, or who volunteered after it."""
    for statement in _OPINIONS:
        db.execute(statement)
    for table in ("judgements", "opinions", "volunteers"):
        _protect(db, table)


_GOING_ON = (
    """CREATE TABLE extensions (
        run_id TEXT NOT NULL REFERENCES runs,
        seq INTEGER NOT NULL CHECK (seq >= 1),
        after INTEGER NOT NULL CHECK (after >= 0),
        count INTEGER NOT NULL CHECK (count > after),
        ended_ms INTEGER NOT NULL,
        end_reason TEXT,
        at_ms INTEGER NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE origins (
        run_id TEXT PRIMARY KEY REFERENCES runs,
        digest TEXT NOT NULL CHECK (length(digest) = 64)
    ) STRICT, WITHOUT ROWID""",
    "DROP TRIGGER IF EXISTS runs_end_once",
    """CREATE TRIGGER runs_end_once BEFORE UPDATE ON runs
        WHEN OLD.run_id <> NEW.run_id OR OLD.recipe <> NEW.recipe
            OR (OLD.ended_ms IS NOT NULL AND (NEW.ended_ms IS NOT NULL OR NOT EXISTS (
                SELECT 1 FROM extensions e
                WHERE e.run_id = OLD.run_id AND e.ended_ms = OLD.ended_ms)))
        BEGIN SELECT RAISE(ABORT, 'a run that ended goes on by an extension only'); END""",
)


@migrations()
def m005_going_on(db: Database) -> None:
    """Let a run that ended go on for more rounds, and remember what model a run began from."""
    for statement in _GOING_ON:
        db.execute(statement)
    for table in ("extensions", "origins"):
        _protect(db, table)


@migrations()
def m006_standardized(db: Database) -> None:
    """Keep a run's recipe with what features are scaled by, once devices have found it."""
    db.execute(
        """CREATE TABLE standardized (
            run_id TEXT PRIMARY KEY REFERENCES runs,
            recipe TEXT NOT NULL,
            agents INTEGER NOT NULL CHECK (agents >= 1),
            samples INTEGER NOT NULL CHECK (samples >= 1)
        ) STRICT, WITHOUT ROWID"""
    )
    _protect(db, "standardized")


def _protect(db: Database, table: str) -> None:
    """Let nobody change or delete a row."""
    for verb in ("UPDATE", "DELETE"):
        db.execute(
            f"""CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}
            BEGIN SELECT RAISE(ABORT, '{table} can only be appended to'); END"""
        )
