"""What the store knows, for the CLI, the report and the web page: read-only."""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import structs

from fedagent_coordinator.books.archives import closed_books, closed_sums, reopen
from fedagent_coordinator.books.audit import Balance, Ledger
from fedagent_coordinator.books.connection import DATABASE, damage_behind
from fedagent_coordinator.books.evaluations import EvaluationQueries
from fedagent_coordinator.books.ledger import RENT_PAID, TREASURY
from fedagent_coordinator.books.models import ModelQueries, recipe_in
from fedagent_coordinator.books.proofs import recent_work
from fedagent_coordinator.books.pruning import Prunable, foretold, prunable
from fedagent_coordinator.books.records import (
    unpack_arrays,
    unpack_controls,
    unpack_selection,
    unpack_view,
)
from fedagent_coordinator.books.rounds import Logged, logged, pruned_until, settled
from fedagent_coordinator.books.rows import (
    DeviceRow,
    EdgeRow,
    EdgeTotal,
    OrderRow,
    OutcomeRow,
    RoundRow,
    RunRow,
    fetch,
)
from fedagent_coordinator.books.schema import check_version
from fedagent_coordinator.books.sums import Tally, paid_updates, tallies
from fedagent_coordinator.core.decision import CLAIMS, TRUST
from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.core.settings import Progress
from fedagent_coordinator.core.trust import ClaimGaps, Trust
from fedagent_coordinator.errors import (
    PrunedRoundError,
    RecordError,
    StateError,
    StoreDamagedError,
    UnknownRoundError,
    UnknownRunError,
)
from fedagent_coordinator.policies.base import (
    MAX_COUNT,
    Feedback,
    IntArray,
    RoundView,
    Selection,
    State,
)
from fedagent_coordinator.policies.state import taken

ORDERS_OF = 500
"""Newest rounds among which orders of one client are looked for."""
_RUN = (
    "SELECT run_id, recipe_digest, coalesce(s.recipe, r.recipe) AS recipe, seed, unlimited, "
    "origin, begun_ms, ended_ms, end_reason FROM runs r LEFT JOIN standardized s USING (run_id)"
)
_PAID = "SUM(CASE WHEN NOT o.void THEN v.price_micro END)"


class Restorable(Protocol):
    """What decided the rounds of a run (`core.decision.DecisionPolicies`)."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly."""

    def learn(self, feedback: Feedback, controls: Controls) -> None:
        """Learn from a settled round."""


class Reader:
    """Queries over a connection to the database in `folder`, with rows by name."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._db = connection
        self.folder = folder
        self.models = ModelQueries(connection)
        self.evaluations = EvaluationQueries(connection)
        self.ledger = Ledger(connection, folder)

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """See one state of the database in all queries of this context."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

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
        found = self._runs("substr(run_id, 1, length(?)) = ?", begins, begins)
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
        return fetch(
            self._db, RunRow, f"{_RUN} WHERE {where} ORDER BY begun_ms DESC, run_id", values
        )

    def standardized(self, run_id: str) -> str | None:
        """Return a run's recipe with what features are scaled by; None where that is not known."""
        found = self._value("SELECT recipe FROM standardized WHERE run_id = ?", run_id)
        return None if found is None else str(found)

    def rounds_of(self, run: RunRow) -> int | None:
        """Return how many rounds a run is to have, with those it was extended by.

        0 is no end; None a recipe that this version cannot read.
        """
        extended = self._value(
            "SELECT count FROM extensions WHERE run_id = ? ORDER BY seq DESC LIMIT 1", run.run_id
        )
        if extended is not None:
            return int(extended)
        recipe = recipe_in(run.recipe)
        return None if recipe is None else recipe.rounds.count

    def progress(self, run_id: str) -> Progress:
        """Return where a run stands, as the round engine starts from it."""
        done = self._value(
            "SELECT COUNT(*) FROM rounds WHERE run_id = ? AND state = 'done'", run_id
        )
        model = self.models.last(run_id)
        return Progress(
            next_round=self.last_round(run_id) + 1,
            rounds_done=int(done) + closed_sums(self._db, run_id).done,
            spent_micro=self.balance(run_id, voided=False).settled_micro,
            model=model.digest if model else "",
            model_round=model.round if model else 0,
            model_size=model.size_bytes if model else 0,
            state=self.models.state(run_id),
        )

    # ----------------------------------------------------------------- rounds

    def last_round(self, run_id: str) -> int:
        """Return the number of the newest round; 0 before the first."""
        return int(
            self._value("SELECT COALESCE(MAX(round), 0) FROM rounds WHERE run_id = ?", run_id)
        )

    def round_state(self, run_id: str, round_: int) -> str | None:
        """Return ``open``, ``done`` or ``void``; None if there is no such round."""
        found = self._value(
            "SELECT state FROM rounds WHERE run_id = ? AND round = ?", run_id, round_
        )
        return None if found is None else str(found)

    def done_rounds(self, run_id: str, since: int) -> list[tuple[int, int]]:
        """Return the settled rounds after `since`, and how many clients each ordered."""
        rows = self._db.execute(
            "SELECT round, COUNT(v.client) FROM rounds r "
            "LEFT JOIN reservations v USING (run_id, round) "
            "WHERE run_id = ? AND round > ? AND state = 'done' GROUP BY round ORDER BY round",
            (run_id, since),
        )
        return [(round_, ordered) for round_, ordered in rows]

    def rounds(self, run_id: str, *, last: int | None = None) -> list[RoundRow]:
        """Return the rounds of a run, oldest first; only the `last` ones if given."""
        rows = self._db.execute(
            "SELECT r.round, r.state, r.policy, r.reason, r.timing, r.opened_ms, r.closed_ms, "  # noqa: S608 - constants
            "r.controls, COALESCE(e.edge_id, '') AS rented, "
            "COUNT(v.client) AS ordered, COALESCE(SUM(o.in_time), 0) AS in_time, "
            f"COALESCE(SUM(o.used), 0) AS used, COALESCE({_PAID}, 0) AS paid_micro, "
            f"{RENT_PAID} AS rent_micro "
            "FROM (SELECT * FROM rounds WHERE run_id = ? ORDER BY round DESC LIMIT ?) r "
            "LEFT JOIN reservations v USING (run_id, round) "
            "LEFT JOIN outcomes o USING (run_id, round, client) "
            "LEFT JOIN edges e ON e.run_id = r.run_id AND e.idx = r.rented_edge "
            "GROUP BY r.round ORDER BY r.round",
            (run_id, -1 if last is None else last),
        ).fetchall()
        metrics = self.models.metrics(run_id, first=rows[0]["round"] if rows else 0)
        found = []
        for row in rows:
            controls = unpack_controls(row["controls"]) if row["controls"] else PLAIN
            more = {
                "timing_ms": json.loads(row["timing"]),
                "metrics": metrics.get(row["round"], {}),
                "iterations": controls.iterations,
                "notes": dict(controls.notes),
            }
            found.append(msgspec.convert({**row, **more}, RoundRow))
        return found

    def plan(self, run_id: str, round_: int) -> tuple[RoundView, Selection]:
        """Return what the policy saw and decided, for "why".

        Raises:
            UnknownRoundError, PrunedRoundError: There is no such round, or no more.
        """
        if 1 <= round_ <= (last := self.pruned_until(run_id)):
            raise PrunedRoundError(run_id, round_, last + 1)
        row = self._db.execute(
            "SELECT view, selection FROM rounds WHERE run_id = ? AND round = ?", (run_id, round_)
        ).fetchone()
        if row is None:
            raise UnknownRoundError(run_id, round_)
        return unpack_view(row["view"]), unpack_selection(row["selection"])

    def pruned_until(self, run_id: str) -> int:
        """Return the last round of which what it saw and decided is gone; 0 for none."""
        return pruned_until(self._db, run_id)

    def prunable(self, run_id: str, *, keep_rounds: int = 0, before_ms: int = 2**62) -> Prunable:
        """Return what `fedagent prune` would drop."""
        return prunable(self._db, run_id, keep_rounds=keep_rounds, before_ms=before_ms)

    def foretold(self, pieces: Sequence[Prunable]) -> int:
        """Return by how many bytes the data directory would be smaller without these rounds."""
        return foretold(self._db, self.folder, pieces)

    def free_before(self, run_id: str, round_: int) -> int | None:
        """Return what the run could pay to the clients of a round; None for no limit."""
        if self._value("SELECT unlimited FROM runs WHERE run_id = ?", run_id):
            return None
        moved = self._value(
            "SELECT COALESCE(SUM((target = ?1) * amount_micro - (source = ?1) * amount_micro), 0) "
            "FROM entries WHERE run_id = ?2 AND COALESCE(round, 0) < ?3",
            TREASURY,
            run_id,
            round_,
        )
        moved += closed_sums(self._db, run_id).accounts.get(TREASURY, 0)
        rent = self._value(
            "SELECT rent_micro FROM rounds WHERE run_id = ? AND round = ?", run_id, round_
        )
        return int(moved) - int(rent or 0)

    def orders_of(self, run_id: str, client: int, *, until: int | None = None) -> list[OrderRow]:
        """Return the orders of a client in the `ORDERS_OF` rounds until one, newest first."""
        until = self.last_round(run_id) if until is None else until
        return fetch(
            self._db,
            OrderRow,
            "SELECT v.round, e.edge_id, v.price_micro, COALESCE(o.status, r.state) AS status, "
            "COALESCE(o.reason, r.reason) AS reason, COALESCE(o.in_time, 0) AS in_time, o.tau_s "
            "FROM reservations v JOIN rounds r USING (run_id, round) "
            "JOIN edges e ON e.run_id = v.run_id AND e.idx = v.edge "
            "LEFT JOIN outcomes o USING (run_id, round, client) "
            "WHERE v.run_id = ? AND v.client = ? AND v.round > ? AND v.round <= ? "
            "ORDER BY v.round DESC",
            (run_id, client, until - ORDERS_OF, until),
        )

    def restore(self, run_id: str, policies: Restorable, *, before: int) -> None:
        """Give policies what they knew when a round was decided.

        Raises:
            RecordError, StateError: Stored bytes are damaged, or of other policies.
        """
        row = self._db.execute(
            "SELECT round, state FROM snapshots WHERE run_id = ? AND round < ? "
            "ORDER BY round DESC LIMIT 1",
            (run_id, before),
        ).fetchone()
        if row is not None:
            policies.restore(unpack_arrays(row["state"]))
        for feedback, controls in settled(
            self._db, run_id, since=0 if row is None else row["round"], before=before
        ):
            policies.learn(feedback, controls)

    def client_starts(self, run_id: str) -> IntArray | None:
        """Return how often clients had started as the last round saw them; None if unknown."""
        last = self.last_round(run_id)
        return self.plan(run_id, last)[0].client_starts if last else None

    def recent_work(self, run_id: str, since: int) -> frozenset[tuple[str, int]]:
        """Return agent and round of all work that was paid in the rounds from `since` on."""
        return recent_work(self._db, run_id, since)

    def paid_updates(self, run_id: str) -> dict[str, int]:
        """Return how many updates of each agent were paid; of closed rounds those in time."""
        return paid_updates(self._db, run_id, closed_sums(self._db, run_id).clients)

    def learnt(self, run_id: str) -> Iterator[Feedback]:
        """Yield what the policy learnt of each settled round that is not pruned, in order."""
        return (
            feedback for feedback, _ in settled(self._db, run_id, since=self.pruned_until(run_id))
        )

    def logged(self, run_id: str) -> Iterator[Logged]:
        """Yield every round that has ended as `fedagent replay` needs it, in order.

        Raises:
            PrunedRoundError: What the first of them saw is gone.
        """
        return logged(self._db, run_id)

    def claim_gaps(self, run_id: str) -> dict[int, float]:
        """Return what each client's updates took over what it claimed; by index, where known.

        Of a snapshot that is damaged nothing is known.
        """
        gaps = ClaimGaps()
        if not self._caught_up(run_id, gaps, CLAIMS):
            return {}
        return {n: gap for n, gap in enumerate(gaps.of(0).tolist()) if math.isfinite(gap)}

    def trust(self, run_id: str) -> dict[int, float]:
        """Return how far each client is trusted, by index; likewise."""
        trust, gaps = Trust(), ClaimGaps()
        if not (self._caught_up(run_id, trust, TRUST) and self._caught_up(run_id, gaps, CLAIMS)):
            return {}
        return dict(enumerate(trust.of(0, gaps.of(0)).tolist()))

    def _caught_up(self, run_id: str, part: ClaimGaps | Trust, prefix: str) -> bool:
        """Let a part learn what it knew at the last snapshot, and the rounds since."""
        since = 0
        row = self._db.execute(
            "SELECT round, state FROM snapshots WHERE run_id = ? ORDER BY round DESC LIMIT 1",
            (run_id,),
        ).fetchone()
        try:
            if row is not None and (kept := taken(unpack_arrays(row["state"]), prefix)):
                part.restore(kept)
                since = row["round"]
            for feedback, _ in settled(self._db, run_id, since=since):
                part.learn(feedback)
        except (PrunedRoundError, RecordError, StateError):
            return False
        return True

    def outcomes(self, run_id: str, round_: int | None = None) -> list[OutcomeRow]:
        """Return how the clients ended one round, or every round, in the policy's order."""
        # "Every round, or this one" as one condition would walk all of them.
        one = "" if round_ is None else "AND o.round = ? "
        key = (run_id,) if round_ is None else (run_id, round_)
        return fetch(
            self._db,
            OutcomeRow,
            "SELECT o.*, c.agent_id AS agent, v.edge, e.edge_id, v.price_micro, "  # noqa: S608 - constants
            "(NOT o.void) * v.price_micro AS paid_micro FROM outcomes o "
            "JOIN reservations v USING (run_id, round, client) "
            "JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client "
            "JOIN edges e ON e.run_id = o.run_id AND e.idx = v.edge "
            f"WHERE o.run_id = ? {one}ORDER BY o.round, v.place",
            key,
        )

    def edge_results(
        self, run_id: str, round_: int | None = None, *, since: int = 0
    ) -> list[EdgeRow]:
        """Return how one round, or every round after `since`, ended at each edge."""
        return fetch(
            self._db,
            EdgeRow,
            "SELECT s.*, e.edge_id, e.label, COUNT(v.client) AS ordered, "  # noqa: S608 - constants
            "COALESCE(SUM(o.in_time), 0) AS in_time, COALESCE(SUM(o.used), 0) AS used, "
            f"COALESCE({_PAID}, 0) AS spent_micro FROM edge_results s "
            "JOIN edges e ON e.run_id = s.run_id AND e.idx = s.edge "
            "LEFT JOIN reservations v USING (run_id, round, edge) "
            "LEFT JOIN outcomes o USING (run_id, round, client) "
            "WHERE s.run_id = ? AND s.round > ? AND (? IS NULL OR s.round = ?) "
            "GROUP BY s.round, s.edge ORDER BY s.round, s.edge",
            (run_id, since, round_, round_),
        )

    def edge_totals(self, run_id: str, *, until: int) -> list[EdgeTotal]:
        """Return what the rounds up to `until` came to at each edge, and how the last one ended."""
        return fetch(
            self._db,
            EdgeTotal,
            "SELECT e.edge_id, COUNT(*) AS ordered, SUM(o.in_time) AS in_time, "  # noqa: S608 - constants
            # Beside one MAX, sqlite takes `failed` from the row that has it.
            f"COALESCE({_PAID}, 0) AS spent_micro, MAX(s.round) AS last_round, s.failed "
            "FROM edge_results s JOIN edges e ON e.run_id = s.run_id AND e.idx = s.edge "
            "JOIN reservations v USING (run_id, round, edge) "
            "JOIN outcomes o USING (run_id, round, client) "
            "WHERE s.run_id = ? AND s.round <= ? GROUP BY s.edge",
            (run_id, until),
        )

    def updates_used(self, run_id: str) -> int:
        """Return how many updates went into the models of a run."""
        live = self._value("SELECT COALESCE(SUM(used), 0) FROM outcomes WHERE run_id = ?", run_id)
        return int(live) + sum(one.used for one in closed_sums(self._db, run_id).clients.values())

    def trained_since(self, run_id: str, since: int) -> list[str]:
        """Return the agents whose updates were used in rounds after `since`."""
        rows = self._db.execute(
            "SELECT DISTINCT c.agent_id FROM outcomes o "
            "JOIN clients c ON c.run_id = o.run_id AND c.idx = o.client "
            "WHERE o.run_id = ? AND o.round > ? AND o.used ORDER BY c.idx",
            (run_id, since),
        )
        return [row["agent_id"] for row in rows]

    # ------------------------------------------------------- devices and edges

    def devices(self, run_id: str) -> list[DeviceRow]:
        """Return what each client of a run did, by index."""
        closed, live = closed_sums(self._db, run_id).clients, tallies(self._db, run_id)
        rows = self._db.execute(
            "SELECT idx AS client, agent_id AS agent, label FROM clients "
            "WHERE run_id = ? ORDER BY idx",
            (run_id,),
        )
        nothing, found = Tally(), []
        for row in rows:
            tally = closed.get(row["client"], nothing) + live.get(row["client"], nothing)
            found.append(DeviceRow(**row, **structs.asdict(tally)))
        return found

    def clients(self, run_id: str) -> dict[str, str]:
        """Return the name of every client of a run by id, in the order of their indices."""
        rows = self._db.execute(
            "SELECT agent_id, label FROM clients WHERE run_id = ? ORDER BY idx", (run_id,)
        )
        return dict(rows.fetchall())

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

    @contextmanager
    def whole(self, run_id: str, *, first: int = 1, last: int = MAX_COUNT) -> Iterator["Reader"]:
        """Read closed rounds too: all those of a run, or `first` to `last` and what is near.

        Where there are any, it is of a copy beside temporary files, which takes their size. The
        ledger of the copy cannot be verified; that of this reader can.

        Raises:
            ArchiveError, RecordError: The books of a round are missing or damaged.
        """
        wanted = [
            one for one in closed_books(self._db, run_id) if one.first <= last and first <= one.last
        ]
        if not wanted:
            yield self
            return
        with closing(sqlite3.connect("", isolation_level=None)) as copy:
            self._db.backup(copy)
            copy.row_factory = sqlite3.Row
            reopen(copy, self.folder, wanted)
            yield Reader(copy, self.folder)

    # ------------------------------------------------------------------ money

    def rents(self, run_id: str) -> dict[str, int]:
        """Return what each edge was paid for aggregating, by id."""
        rows = self._db.execute(
            "SELECT e.edge_id, a.balance_micro FROM edges e JOIN accounts a "
            "ON a.run_id = e.run_id AND a.account = 'rent/' || e.idx "
            "WHERE e.run_id = ? ORDER BY e.idx",
            (run_id,),
        )
        return dict(rows.fetchall())

    def balance(self, run_id: str, *, voided: bool = True) -> Balance:
        """Return where the money of a run is, from the stored balances.

        What was `voided` is added up over all entries: who looks often leaves it out, as 0.
        """
        accounts = dict(
            self._db.execute(
                "SELECT account, balance_micro FROM accounts WHERE run_id = ?", (run_id,)
            ).fetchall()
        )
        free = accounts.pop(TREASURY, 0)
        settled = sum(v for k, v in accounts.items() if k.startswith(("client/", "rent/")))
        reserved = sum(v for k, v in accounts.items() if k.startswith("edge/"))
        back = 0
        if voided:
            query = "SELECT COALESCE(SUM(amount_micro), 0) FROM entries WHERE run_id = ?"
            back = int(self._value(f"{query} AND kind = 'void'", run_id))
            back += closed_sums(self._db, run_id).totals.get("void", 0)
        return Balance(
            granted_micro=free + settled + reserved,
            free_micro=free,
            reserved_micro=reserved,
            settled_micro=settled,
            voided_micro=back,
        )

    def _value(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]


@contextmanager
def open_reader(folder: Path) -> Iterator[Reader]:
    """Read the database of a data directory, beside a running coordinator or not.

    Raises:
        UnknownRunError: There is no database yet.
        SchemaVersionError: Another version wrote it.
        StoreDamagedError: What was asked of it in this context cannot be read.
    """
    path = folder / DATABASE
    if not path.exists():
        raise UnknownRunError("")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
    try:
        check_version(connection, str(path))
        connection.row_factory = sqlite3.Row
        yield Reader(connection, folder)
    except Exception as error:
        problem = damage_behind(error, connection)
        if not problem:
            raise
        raise StoreDamagedError(str(path), problem) from error
    finally:
        connection.close()
