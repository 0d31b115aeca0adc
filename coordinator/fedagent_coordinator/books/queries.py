"""What the store knows of a run in figures, read-only.

`fedagent status` starts with it on small devices: it imports neither numpy nor policies.
"""

# ruff: noqa: S608 - every query is made of constants

import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from msgspec import structs

from fedagent_coordinator.errors import UnknownRunError

from .archive import Prunable, closed_pieces, closed_until, prunable, reopened
from .ledger import balance_of
from .models import ModelQueries, recipe_in
from .rows import (
    Balance,
    DeviceRow,
    EdgeRow,
    EdgeTotal,
    OrderRow,
    OutcomeRow,
    RoundRow,
    RunRow,
    fetch,
    unmoved,
    unpacked,
)
from .schema import DATABASE, check_version, finding_damage

Q = TypeVar("Q", bound="Queries")
ORDERS_OF = 500
"""Newest rounds among which orders of one client are looked for."""
_RUN = """SELECT run_id, recipe_digest, coalesce(scaled, recipe) AS recipe,
    scaled IS NOT NULL AS scaled, extended, seed, unlimited, origin, begun_ms, ended_ms, end_reason
    FROM runs"""
_SUMS = "COALESCE(SUM(o.in_time), 0) AS in_time, COALESCE(SUM(o.used), 0) AS used"
_EDGE = "JOIN edges e ON e.run_id = o.run_id AND e.idx = o.edge"
_PAID = "COALESCE(SUM((NOT o.unpaid) * o.price_micro), 0)"


class Decided(msgspec.Struct):
    """What people are told of a round's `Controls`."""

    iterations: int = 0
    notes: dict[str, float] = {}


class Queries:
    """Queries over a connection to the database in `folder`, with rows by name.

    Closed rounds are not among those that are listed, but those after `since`: see `whole`.
    """

    def __init__(
        self, connection: sqlite3.Connection, folder: Path, *, since: int | None = None
    ) -> None:
        self._db, self._since = connection, since
        self.folder = folder
        self.models = ModelQueries(connection)

    def unmoved(self) -> AbstractContextManager[None]:
        """See one state of the database in all queries of this context."""
        return unmoved(self._db)

    def written(self) -> int:
        """Return a number that changes with each commit of another connection."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # ------------------------------------------------------------------- runs

    def runs(self) -> list[RunRow]:
        """Return every run, newest first."""
        return self._runs("1")

    def run(self, run_id: str | None = None) -> RunRow:
        """Return a run by its id or the beginning of it; the newest if none is given.

        Raises:
            UnknownRunError: There is none, or more than one begins so.
        """
        begins = run_id or ""
        found = self._runs("substr(run_id, 1, length(?1)) = ?1", begins)
        if not found or (run_id is not None and len(found) > 1):
            raise UnknownRunError(begins)
        return found[0]

    def find_run(self, recipe_digest: str) -> RunRow | None:
        """Return the newest run of a recipe, ended or not."""
        return next(iter(self._runs("recipe_digest = ?", recipe_digest)), None)

    def open_run(self) -> RunRow | None:
        """Return the run that has not ended; there is one at most."""
        return next(iter(self._runs("ended_ms IS NULL")), None)

    def _runs(self, where: str, *values: object) -> list[RunRow]:
        query = f"{_RUN} WHERE {where} ORDER BY begun_ms DESC, run_id"
        return fetch(self._db, RunRow, query, values)

    def rounds_of(self, run: RunRow) -> int | None:
        """Return how many rounds a run is to have, with those it was extended by.

        0 is no end; None a recipe that this version cannot read.
        """
        if run.extended is not None:
            return run.extended
        recipe = recipe_in(run.recipe)
        return None if recipe is None else recipe.rounds.count

    # ----------------------------------------------------------------- rounds

    def rounds_done(self, run_id: str) -> int:
        """Return how many rounds were settled."""
        return self._number(
            "SELECT COUNT(*) FROM rounds WHERE run_id = ? AND state = 'done'", run_id
        )

    def last_round(self, run_id: str) -> int:
        """Return the number of the newest round; 0 before the first."""
        return self._number("SELECT MAX(round) FROM rounds WHERE run_id = ?", run_id)

    def round_state(self, run_id: str, round_: int) -> str | None:
        """Return ``open``, ``done`` or ``void``; None if there is no such round."""
        query = "SELECT state FROM rounds WHERE run_id = ? AND round = ?"
        row = self._db.execute(query, (run_id, round_)).fetchone()
        return None if row is None else str(row[0])

    def rounds(self, run_id: str, *, last: int | None = None) -> list[RoundRow]:
        """Return the rounds of a run, oldest first; only the `last` ones if given."""
        since = self.closed_until(run_id) if self._since is None else self._since
        rows = self._db.execute(
            "SELECT r.round, r.state, r.policy, r.reason, r.timing, r.opened_ms, r.closed_ms, "
            "r.controls, r.ordered, r.rent_paid_micro AS rent_micro, "
            "COALESCE(e.edge_id, '') AS rented, "
            f"{_SUMS}, {_PAID} AS paid_micro FROM (SELECT * FROM rounds "
            "WHERE run_id = ? AND round > ? ORDER BY round DESC LIMIT ?) r "
            "LEFT JOIN orders o USING (run_id, round) "
            "LEFT JOIN edges e ON e.run_id = r.run_id AND e.idx = r.rented_edge "
            "GROUP BY r.round ORDER BY r.round",
            (run_id, since, -1 if last is None else last),
        ).fetchall()
        metrics = self.models.metrics(run_id, first=rows[0]["round"] if rows else 0)
        found = []
        for row in rows:
            decided = unpacked(row["controls"], Decided) if row["controls"] else Decided()
            more = {
                "timing_ms": json.loads(row["timing"]),
                "metrics": metrics.get(row["round"], {}),
                **structs.asdict(decided),
            }
            found.append(msgspec.convert({**row, **more}, RoundRow))
        return found

    def closed_until(self, run_id: str) -> int:
        """Return the last round of which what it saw and decided is gone; 0 for none."""
        return closed_until(self._db, run_id)

    def prunable(self, run_id: str, *, keep_rounds: int = 0) -> Prunable:
        """Return what `fedagent prune` would drop."""
        return prunable(self._db, run_id, keep_rounds=keep_rounds)

    def orders_of(self, run_id: str, client: int, *, until: int | None = None) -> list[OrderRow]:
        """Return the orders of a client in the `ORDERS_OF` rounds until one, newest first."""
        until = self.last_round(run_id) if until is None else until
        return fetch(
            self._db,
            OrderRow,
            "SELECT o.round, e.edge_id, o.price_micro, COALESCE(o.status, r.state) AS status, "
            "COALESCE(o.reason, r.reason) AS reason, COALESCE(o.in_time, 0) AS in_time, o.tau_s "
            f"FROM orders o JOIN rounds r USING (run_id, round) {_EDGE} "
            "WHERE o.run_id = ? AND o.client = ? AND o.round > ? AND o.round <= ? "
            "ORDER BY o.round DESC",
            (run_id, client, until - ORDERS_OF, until),
        )

    def outcomes(
        self, run_id: str, round_: int | None = None, *, since: int = 0
    ) -> list[OutcomeRow]:
        """Return how the clients ended one round, or each after `since`, in the policy's order."""
        # "Every round, or this one" as one condition would walk all of them.
        return fetch(
            self._db,
            OutcomeRow,
            "SELECT o.*, c.agent_id AS agent, e.edge_id, "
            "(NOT o.unpaid) * o.price_micro AS paid_micro FROM orders o "
            f"JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client {_EDGE} "
            f"WHERE o.run_id = ? AND o.round {'>' if round_ is None else '='} ? "
            "AND o.status IS NOT NULL ORDER BY o.round, o.place",
            (run_id, since if round_ is None else round_),
        )

    def edge_results(
        self, run_id: str, round_: int | None = None, *, since: int = 0
    ) -> list[EdgeRow]:
        """Return how one round, or every round after `since`, ended at each edge."""
        return fetch(
            self._db,
            EdgeRow,
            f"SELECT s.*, e.edge_id, e.label, {_SUMS}, {_PAID} AS spent_micro, "
            "COUNT(o.client) AS ordered "
            "FROM edge_results s JOIN edges e ON e.run_id = s.run_id AND e.idx = s.edge "
            "LEFT JOIN orders o USING (run_id, round, edge) "
            "WHERE s.run_id = ? AND s.round > ? AND (? IS NULL OR s.round = ?) "
            "GROUP BY s.round, s.edge ORDER BY s.round, s.edge",
            (run_id, since, round_, round_),
        )

    # ------------------------------------------------------- devices and edges

    def devices(self, run_id: str) -> list[DeviceRow]:
        """Return what each client of a run did, by index."""
        return fetch(
            self._db,
            DeviceRow,
            "SELECT idx AS client, agent_id AS agent, label, ordered, in_time, used, paid_micro, "
            "last_round, last_status, last_reason, released FROM clients "
            "WHERE run_id = ? ORDER BY idx",
            (run_id,),
        )

    def paid_updates(self, run_id: str) -> dict[str, int]:
        """Return how many updates of each agent were paid."""
        query = "SELECT agent_id, paid FROM clients WHERE run_id = ? AND paid > 0"
        return dict(self._db.execute(query, (run_id,)).fetchall())

    def updates_used(self, run_id: str) -> int:
        """Return how many updates went into the models of a run."""
        return self._number("SELECT SUM(used) FROM clients WHERE run_id = ?", run_id)

    def edges(self, run_id: str) -> dict[str, str]:
        """Return the name of every edge that was heard in a run, by id."""
        query = "SELECT edge_id, label FROM edges WHERE run_id = ? ORDER BY idx"
        return dict(self._db.execute(query, (run_id,)).fetchall())

    def edge_totals(self, run_id: str) -> dict[str, EdgeTotal]:
        """Return what the rounds of a run came to at each edge, and how the last one ended."""
        query = "SELECT * FROM edges WHERE run_id = ? ORDER BY idx"
        return {row.edge_id: row for row in fetch(self._db, EdgeTotal, query, (run_id,))}

    def balance(self, run_id: str) -> Balance:
        """Return where the money of a run is."""
        return Balance(*balance_of(self._db, run_id))

    @contextmanager
    def whole(self, run_id: str, *, first: int = 1) -> Iterator[Self]:
        """Read closed rounds too: all those of a run, or those from about `first` on.

        They are read into the memory, or temporary files, of this connection. The ledger cannot be
        verified meanwhile, and nothing may be written.

        Raises:
            StoreDamagedError: The orders of a round are missing or damaged.
        """
        wanted = [one for one in closed_pieces(self._db, run_id) if first <= one[0].last]
        if not wanted:
            yield self
            return
        with reopened(self._db, self.folder, wanted, alone=False):
            yield type(self)(self._db, self.folder, since=wanted[0][0].first - 1)

    def _number(self, query: str, *values: object) -> int:
        """Return the first value of the first row; 0 for none."""
        row = self._db.execute(query, values).fetchone()
        return int(row[0] or 0) if row else 0


@contextmanager
def open_books(folder: Path, kind: type[Q]) -> Iterator[Q]:
    """Read the database of a data directory, beside a running coordinator or not.

    Raises:
        UnknownRunError: There is no database yet.
        StoreDamagedError: Another version wrote it, or what was asked of it in this context cannot
            be read.
    """
    path = folder / DATABASE
    if not path.exists():
        raise UnknownRunError("")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
    try:
        with finding_damage(connection, path):
            check_version(connection, str(path))
            connection.row_factory = sqlite3.Row
            yield kind(connection, folder)
    finally:
        connection.close()
