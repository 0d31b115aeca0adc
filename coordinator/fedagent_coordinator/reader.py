"""What the store knows, for the CLI, the report and the web page: read-only."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .audit import Balance, Ledger
from .core.effects import PLAIN, Controls
from .core.settings import Progress
from .damage import damage_behind
from .errors import StoreDamagedError, UnknownRoundError, UnknownRunError
from .ledger import TREASURY
from .old_schema import as_of_today
from .policies.base import RoundView, Selection
from .reader_models import ModelReader, ModelRow, recipe_in
from .records import unpack_controls, unpack_selection, unpack_view

__all__ = [
    "DATABASE",
    "DeviceRow",
    "EdgeRow",
    "ModelRow",
    "OutcomeRow",
    "Reader",
    "RoundRow",
    "Run",
    "open_reader",
]

DATABASE = "coordinator.db"
MARK = "coordinator.mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run; `ended_ms` is None while it may go on."""

    run_id: str
    recipe_digest: str
    recipe: str
    seed: int
    unlimited: bool
    begun_ms: int
    ended_ms: int | None
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One round in one line.

    Attributes:
        paid_micro: What clients were paid.
        iterations: Local iterations ordered; 0 left them to the learner.
        rented: Id of the edge that was rented; empty for none.
        rent_micro: What it was paid.
        notes: What iteration control went by, named.
    """

    round: int
    state: str
    policy: str
    ordered: int
    in_time: int
    used: int
    paid_micro: int
    reason: str
    timing_ms: Mapping[str, float]
    metrics: Mapping[str, float]
    opened_ms: int
    closed_ms: int | None
    iterations: int = 0
    rented: str = ""
    rent_micro: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """How one ordered client ended a round; times in seconds, None if unknown."""

    round: int
    client: int
    agent: str
    edge: int
    edge_id: str
    price_micro: int
    status: str
    in_time: bool
    used: bool
    paid_micro: int
    censored: bool
    tau_s: float
    dt_s: float | None
    lc_s: float | None
    ut_s: float | None
    num_samples: int
    arrivals: int
    weight: float | None
    norm: float | None
    loss: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """How one round ended at one edge; `failed` is empty when it has a new model."""

    round: int
    edge: int
    edge_id: str
    label: str
    ordered: int
    in_time: int
    used: int
    spent_micro: int
    failed: str
    model: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """What one client did in a run."""

    client: int
    agent: str
    label: str = ""
    selected: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    last_round: int | None = None
    last_status: str | None = None
    last_reason: str = ""


class Reader(ModelReader):
    """Queries over one connection; those about models are in `reader_models`, and so on.

    Args:
        connection: A connection to the database, read-only or not.
        folder: The data directory it is in.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        super().__init__(connection)
        self.ledger = Ledger(connection, folder / MARK)

    def runs(self) -> list[Run]:
        """Return every run, newest first."""
        rows = self._db.execute(
            "SELECT run_id, recipe_digest, coalesce(s.recipe, runs.recipe), seed, unlimited, "
            "begun_ms, ended_ms, end_reason FROM runs LEFT JOIN standardized s USING (run_id) "
            "ORDER BY begun_ms DESC, run_id"
        )
        return [
            Run(
                run_id=row[0],
                recipe_digest=row[1],
                recipe=row[2],
                seed=row[3],
                unlimited=bool(row[4]),
                begun_ms=row[5],
                ended_ms=row[6],
                end_reason=row[7],
            )
            for row in rows
        ]

    def standardized(self, run_id: str) -> str | None:
        """Return a run's recipe with what features are scaled by; None where that is not known."""
        row = self._db.execute(
            "SELECT recipe FROM standardized WHERE run_id = ?", (run_id,)
        ).fetchone()
        return None if row is None else str(row[0])

    def run(self, run_id: str | None = None) -> Run:
        """Return a run by its id or the beginning of it; the newest if none is given.

        Raises:
            UnknownRunError: There is none, or more than one begins so.
        """
        found = [run for run in self.runs() if run_id is None or run.run_id.startswith(run_id)]
        if not found or (run_id is not None and len(found) > 1):
            raise UnknownRunError(run_id or "")
        return found[0]

    def find_run(self, recipe_digest: str) -> Run | None:
        """Return the newest run of a recipe, ended or not."""
        return next((run for run in self.runs() if run.recipe_digest == recipe_digest), None)

    def open_run(self) -> Run | None:
        """Return the run that has not ended; there is one at most."""
        return next((run for run in self.runs() if run.ended_ms is None), None)

    def rounds_of(self, run: Run) -> int | None:
        """Return how many rounds a run is to have, with those it was extended by.

        0 is no end; None a recipe that this version cannot read.
        """
        row = self._db.execute(
            "SELECT count FROM extensions WHERE run_id = ? ORDER BY seq DESC LIMIT 1",
            (run.run_id,),
        ).fetchone()
        if row is not None:
            return int(row[0])
        recipe = recipe_in(run.recipe)
        return None if recipe is None else recipe.rounds.count

    def origin(self, run_id: str) -> str:
        """Return the digest of the model that a run was told to begin from; empty for none."""
        row = self._db.execute("SELECT digest FROM origins WHERE run_id = ?", (run_id,)).fetchone()
        return "" if row is None else str(row[0])

    def progress(self, run_id: str) -> Progress:
        """Return where a run stands, as the round engine starts from it."""
        done = self._db.execute(
            "SELECT COUNT(*) FROM rounds WHERE run_id = ? AND state = 'done'", (run_id,)
        ).fetchone()[0]
        model = self.last_global(run_id)
        return Progress(
            next_round=self.last_round(run_id) + 1,
            rounds_done=done,
            spent_micro=self.balance(run_id).settled_micro,
            model=model.digest if model else "",
            model_size=model.size_bytes if model else 0,
        )

    def last_round(self, run_id: str) -> int:
        """Return the number of the newest round; 0 before the first."""
        row = self._db.execute(
            "SELECT COALESCE(MAX(round), 0) FROM rounds WHERE run_id = ?", (run_id,)
        ).fetchone()
        return int(row[0])

    def rounds(self, run_id: str, *, last: int | None = None) -> list[RoundRow]:
        """Return the rounds of a run, oldest first; only the `last` ones if given."""
        rows = self._db.execute(
            "SELECT r.round, r.state, r.policy, r.ordered, COALESCE(SUM(o.in_time), 0), "
            "COALESCE(SUM(o.used), 0), COALESCE(SUM(o.paid_micro), 0), r.reason, r.timing, "
            "r.opened_ms, r.closed_ms, c.record, COALESCE(e.edge_id, ''), "
            "(SELECT COALESCE(SUM(amount_micro), 0) FROM entries n WHERE n.run_id = r.run_id "
            "AND n.round = r.round AND n.kind = 'settle' AND n.client IS NULL) "
            "FROM (SELECT * FROM rounds WHERE run_id = ? "
            "ORDER BY round DESC LIMIT ?) r LEFT JOIN outcomes o USING (run_id, round) "
            "LEFT JOIN controls c ON c.run_id = r.run_id AND c.round = r.round "
            "LEFT JOIN edges e ON e.run_id = c.run_id AND e.idx = c.edge "
            "GROUP BY r.round ORDER BY r.round",
            (run_id, -1 if last is None else last),
        ).fetchall()
        metrics = self.metrics(run_id, first=rows[0][0] if rows else 0)
        return [
            RoundRow(
                round=row[0],
                state=row[1],
                policy=row[2],
                ordered=row[3],
                in_time=row[4],
                used=row[5],
                paid_micro=row[6],
                reason=row[7],
                timing_ms=json.loads(row[8]),
                metrics=metrics.get(row[0], {}),
                opened_ms=row[9],
                closed_ms=row[10],
                iterations=controls.iterations,
                rented=row[12],
                rent_micro=row[13],
                notes=dict(controls.notes),
            )
            for row in rows
            for controls in (_controls(row[11]),)
        ]

    def round_state(self, run_id: str, round_: int) -> str | None:
        """Return ``open``, ``done`` or ``void``; None if there is no such round."""
        row = self._db.execute(
            "SELECT state FROM rounds WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        return None if row is None else str(row[0])

    def plan(self, run_id: str, round_: int) -> tuple[RoundView, Selection]:
        """Return what the policy saw and decided.

        Raises:
            UnknownRoundError: The run has no such round.
        """
        row = self._db.execute(
            "SELECT view, selection FROM rounds WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        if row is None:
            raise UnknownRoundError(run_id, round_)
        return unpack_view(row[0]), unpack_selection(row[1])

    def outcomes(self, run_id: str, round_: int | None = None) -> list[OutcomeRow]:
        """Return how the clients ended one round, or every round, in the policy's order."""
        rows = self._db.execute(
            "SELECT o.round, o.client, c.agent_id, o.edge, e.edge_id, r.price_micro, o.status, "
            "o.in_time, o.used, o.paid_micro, o.censored, o.tau_s, o.dt_s, o.lc_s, o.ut_s, "
            "o.num_samples, o.arrivals, o.weight, o.norm, o.loss, o.reason FROM outcomes o "
            "JOIN reservations r USING (run_id, round, client) "
            "JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client "
            "JOIN edges e ON e.run_id = o.run_id AND e.idx = o.edge "
            "WHERE o.run_id = ? AND (? IS NULL OR o.round = ?) ORDER BY o.round, r.place",
            (run_id, round_, round_),
        )
        return [
            OutcomeRow(
                round=row[0],
                client=row[1],
                agent=row[2],
                edge=row[3],
                edge_id=row[4],
                price_micro=row[5],
                status=row[6],
                in_time=bool(row[7]),
                used=bool(row[8]),
                paid_micro=row[9],
                censored=bool(row[10]),
                tau_s=row[11],
                dt_s=row[12],
                lc_s=row[13],
                ut_s=row[14],
                num_samples=row[15],
                arrivals=row[16],
                weight=row[17],
                norm=row[18],
                loss=row[19],
                reason=row[20],
            )
            for row in rows
        ]

    def edge_results(self, run_id: str, round_: int | None = None) -> list[EdgeRow]:
        """Return how one round, or every round, ended at each edge."""
        rows = self._db.execute(
            "SELECT s.round, s.edge, e.edge_id, e.label, s.ordered, s.in_time, s.used, "
            "s.spent_micro, s.failed, s.model, s.weight FROM edge_results s "
            "JOIN edges e ON e.run_id = s.run_id AND e.idx = s.edge "
            "WHERE s.run_id = ? AND (? IS NULL OR s.round = ?) ORDER BY s.round, s.edge",
            (run_id, round_, round_),
        )
        return [
            EdgeRow(
                round=row[0],
                edge=row[1],
                edge_id=row[2],
                label=row[3],
                ordered=row[4],
                in_time=row[5],
                used=row[6],
                spent_micro=row[7],
                failed=row[8],
                model=row[9],
                weight=row[10],
            )
            for row in rows
        ]

    def edges(self, run_id: str) -> dict[str, str]:
        """Return the name of every edge that was heard in a run, by id."""
        rows = self._db.execute(
            "SELECT edge_id, label FROM edges WHERE run_id = ? ORDER BY idx", (run_id,)
        )
        return dict(rows.fetchall())

    def forgotten(self, run_id: str) -> dict[str, int]:
        """Return the round up to which what an edge learnt counts in no merge, by edge."""
        rows = self._db.execute(
            "SELECT e.edge_id, MAX(f.round) FROM forgotten f "
            "JOIN edges e ON e.run_id = f.run_id AND e.idx = f.edge "
            "WHERE f.run_id = ? GROUP BY e.edge_id",
            (run_id,),
        )
        return dict(rows.fetchall())

    def updates_used(self, run_id: str) -> int:
        """Return how many updates went into the models of a run."""
        row = self._db.execute(
            "SELECT COALESCE(SUM(used), 0) FROM edge_results WHERE run_id = ?", (run_id,)
        ).fetchone()
        return int(row[0])

    def rents(self, run_id: str) -> dict[str, int]:
        """Return what each edge was paid for aggregating, by id."""
        rows = self._db.execute(
            "SELECT e.edge_id, SUM(n.amount_micro) FROM entries n "
            "JOIN edges e ON e.run_id = n.run_id AND e.idx = n.edge WHERE n.run_id = ? "
            "AND n.kind = 'settle' AND n.client IS NULL GROUP BY e.edge_id ORDER BY e.idx",
            (run_id,),
        )
        return dict(rows.fetchall())

    def devices(self, run_id: str) -> list[DeviceRow]:
        """Return what each client of a run did, by index."""
        rows = self._db.execute(
            "SELECT c.idx, c.agent_id, c.label, COUNT(r.round), COALESCE(SUM(o.in_time), 0), "
            "COALESCE(SUM(o.used), 0), COALESCE(SUM(o.paid_micro), 0), MAX(o.round), "
            # Beside one MAX, sqlite takes these from the row that has it.
            "o.status, o.reason FROM clients c "
            "LEFT JOIN reservations r ON r.run_id = c.run_id AND r.client = c.idx "
            "LEFT JOIN outcomes o ON o.run_id = r.run_id AND o.round = r.round "
            "AND o.client = r.client WHERE c.run_id = ? GROUP BY c.idx ORDER BY c.idx",
            (run_id,),
        )
        return [
            DeviceRow(
                client=row[0],
                agent=row[1],
                label=row[2],
                selected=row[3],
                in_time=row[4],
                used=row[5],
                paid_micro=row[6],
                last_round=row[7],
                last_status=row[8],
                last_reason=row[9] or "",
            )
            for row in rows
        ]

    def balance(self, run_id: str) -> Balance:
        """Return where the money of a run is, from the stored balances."""
        accounts = dict(
            self._db.execute(
                "SELECT account, balance_micro FROM accounts WHERE run_id = ?", (run_id,)
            ).fetchall()
        )
        free = accounts.pop(TREASURY, 0)
        settled = sum(v for k, v in accounts.items() if k.startswith(("client/", "rent/")))
        reserved = sum(v for k, v in accounts.items() if k.startswith("edge/"))
        voided = self._db.execute(
            "SELECT COALESCE(SUM(amount_micro), 0) FROM entries WHERE run_id = ? AND kind = 'void'",
            (run_id,),
        ).fetchone()[0]
        return Balance(
            granted_micro=free + settled + reserved,
            free_micro=free,
            reserved_micro=reserved,
            settled_micro=settled,
            voided_micro=voided,
        )


def _controls(record: bytes | None) -> Controls:
    """Return what was decided of a round besides who trains."""
    return PLAIN if record is None else unpack_controls(record)


@contextmanager
def open_reader(folder: Path) -> Iterator[Reader]:
    """Read the database of a data directory, beside a running coordinator or not.

    Raises:
        UnknownRunError: There is no database yet.
        StoreDamagedError: What was asked of it in this context cannot be read.
    """
    path = folder / DATABASE
    if not path.exists():
        raise UnknownRunError("")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
    try:
        connection = as_of_today(connection)
        yield Reader(connection, folder)
    except Exception as error:
        problem = damage_behind(error, connection)
        if not problem:
            raise
        raise StoreDamagedError(str(path), problem) from error
    finally:
        connection.close()
