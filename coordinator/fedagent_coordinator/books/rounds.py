"""Rounds in the store's transactions: their plans, how they ended, and what they taught.

A feedback is not stored: it is rebuilt from the round's view, its selection and its
outcomes, so a policy that is restored has learnt exactly what was settled, bit for bit.
Opinions are written later, with the evaluation of a round's model, and join it here.
"""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedagent_coordinator.books import facts
from fedagent_coordinator.books.archives import closed_until
from fedagent_coordinator.books.connection import Database
from fedagent_coordinator.books.ledger import RENT_PAID, ROUTES, TREASURY, Transfer
from fedagent_coordinator.books.models import insert_metrics
from fedagent_coordinator.books.records import (
    pack_controls,
    pack_selection,
    pack_view,
    unpack_controls,
    unpack_selection,
    unpack_view,
)
from fedagent_coordinator.core.effects import PLAIN, Controls, Reserve, Settle
from fedagent_coordinator.core.evaluation import by_client
from fedagent_coordinator.core.outcomes import endings_of
from fedagent_coordinator.core.trust import evidence
from fedagent_coordinator.errors import (
    InvalidSelectionError,
    LedgerError,
    PrunedRoundError,
    RecordError,
)
from fedagent_coordinator.policies.base import (
    MAX_COUNT,
    Feedback,
    IntArray,
    RoundView,
    Selection,
)
from fedagent_coordinator.policies.selection import check_selection, check_view, spent_per_edge
from fedagent_task.scoring.measures import DEVICE_SCORE, TRAIN_LOSS

DEVICE_SAMPLES = "device_samples"
"""On how many samples a score by devices rests."""

FLAGS = ("used", "void", "censored")
COUNTS = ("num_samples", "arrivals", "steps", "iterations")
SECONDS = ("tau_s", "dt_s", "lc_s", "ut_s", "train_s", "seconds_per_iteration")
LOSSES = ("loss_rms",)
_DETAILS = ("status", "reason", "weight", "norm", "loss")
OUTCOME = ("client", "in_time", *FLAGS, *COUNTS, *SECONDS, *LOSSES, *_DETAILS)
_DTYPES = ((FLAGS, np.bool_), (COUNTS, np.int64), (SECONDS, np.float64), (LOSSES, np.float64))
_OPTIONAL = {"steps": "steps", "iterations": "iterations", "train_s": "steps"}
"""Columns that a feedback may do without, and the one whose NULLs say so: seconds may be NaN."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a round reserved for one client; without a client it is the rent of the edge.

    `payee` is the agent's id, or the edge's; `proof` the digest of what shows the work.
    """

    client: int | None
    edge: int
    price_micro: int
    payee: str = ""
    proof: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """A round as it is on disk: what its policy saw and decided, and what it learnt.

    Attributes:
        feedback: None of a round that was voided: nobody learnt from it.
        free_micro: What the run could still pay to clients; None for no limit.
    """

    view: RoundView
    selection: Selection
    feedback: Feedback | None
    controls: Controls = PLAIN
    free_micro: int | None = None


# ------------------------------------------------------------------- reserving


def checked_plan(plan: Reserve) -> list[Reservation]:
    """Return what a plan reserves: the rent if there is one, then clients in its order.

    Raises:
        LedgerError: An edge's budget does not suffice.
        InvalidSelectionError: The selection breaks another constraint.
    """
    view, pairs, placement = plan.view, plan.selection.pairs, plan.controls.placement
    if view.round != plan.round or len(plan.context_seq) != len(pairs):
        raise InvalidSelectionError("plan", plan.round, "view and selection are of another round")
    check_view(view)
    for edge, micro in enumerate(spent_per_edge(view, pairs)):
        if micro > (budget := int(view.edge_budget[edge])):
            raise overspent(f"edge {edge}", wanted_micro=micro, free_micro=budget)
    check_selection(view, pairs)
    clients = view.pair_client[pairs]
    prices = view.client_price[clients].tolist()
    columns = (clients.tolist(), view.pair_edge[pairs].tolist(), prices)
    chosen = [Reservation(*row) for row in zip(*columns, strict=True)]
    if placement.edge is None:
        return chosen
    return [Reservation(None, placement.edge, placement.rent_micro), *chosen]


def insert_plan(
    db: Database, run_id: str, plan: Reserve, *, policy: str, planned: Sequence[Reservation]
) -> None:
    """Write a round with its budgets and reservations, and take their money."""
    view, selection = pack_view(plan.view), pack_selection(plan.selection)
    controls = b"" if plan.controls.plain else pack_controls(plan.controls)
    now, key = db.clock_ms(), (run_id, plan.round)
    row = {
        "run_id": run_id,
        "round": plan.round,
        "policy": policy,
        "view": view,
        "selection": selection,
        "controls": controls,
        "rented_edge": plan.controls.placement.edge,
        "rent_micro": sum(r.price_micro for r in planned if r.client is None),
        "opened_ms": now,
    }
    db.connection.execute(
        f"INSERT INTO rounds (state, {', '.join(row)}) "  # noqa: S608 - constants
        f"VALUES ('open', {', '.join(f':{name}' for name in row)})",
        row,
    )
    chosen = [r for r in planned if r.client is not None]
    spent: Counter[int] = Counter()
    for r in chosen:
        spent[r.edge] += r.price_micro
    db.connection.executemany(
        "INSERT INTO edge_budgets (run_id, round, edge, budget_micro, reserved_micro) "
        "VALUES (?, ?, ?, ?, ?)",
        [(*key, edge, int(plan.view.edge_budget[edge]), micro) for edge, micro in spent.items()],
    )
    db.connection.executemany(
        "INSERT INTO reservations (run_id, round, client, edge, price_micro, context_seq, place) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (*key, r.client, r.edge, r.price_micro, context_seq, place)
            for place, (r, context_seq) in enumerate(
                zip(chosen, plan.context_seq.tolist(), strict=True)
            )
        ],
    )
    reserved = reservations_of(db.connection, *key)
    moves = [_transfer(run_id, plan.round, "reserve", r) for r in reserved]
    db.ledger.append(run_id, moves, now)
    facts.bind(db.ledger, db.connection, facts.PLAN, run_id, plan.round, at_ms=now)


def _transfer(run_id: str, round_: int, kind: str, r: Reservation) -> Transfer:
    """Return an entry; a settle and a void have the same key, so there can be one only."""
    who, step = "rent" if r.client is None else r.client, "reserve" if kind == "reserve" else "end"
    source, target = ROUTES[kind](r.edge, r.client)
    return Transfer(
        kind=kind,
        source=source,
        target=target,
        amount_micro=r.price_micro,
        key=f"{run_id}/{round_}/{who}/{step}",
        round=round_,
        edge=r.edge,
        client=r.client,
        payee=r.payee,
        facts=r.proof if kind == "settle" else b"",
    )


# -------------------------------------------------------------------- settling


def reservations_of(sql: sqlite3.Connection, run_id: str, round_: int) -> list[Reservation]:
    """Return what a round reserved: the rent if there is one, then clients in its order."""
    rows = sql.execute(
        "SELECT client, edge, price_micro, agent_id, place FROM reservations "
        "JOIN clients USING (run_id) WHERE run_id = ?1 AND round = ?2 AND idx = client "
        "UNION ALL SELECT NULL, rented_edge, rent_micro, edge_id, -1 FROM rounds "
        "JOIN edges USING (run_id) WHERE run_id = ?1 AND round = ?2 AND idx = rented_edge "
        "ORDER BY place",
        (run_id, round_),
    )
    return [Reservation(*row[:4]) for row in rows]


def overspent(payer: str, *, wanted_micro: int, free_micro: int) -> LedgerError:
    """Return the error of a round that wants more than is free at an edge or in the run."""
    return LedgerError(f"{payer} has {free_micro} micro-credits, the round needs {wanted_micro}")


def checked_ends(result: Settle, reservations: Sequence[Reservation]) -> frozenset[int | None]:
    """Return the clients that are paid, and None if the rent is.

    Raises:
        LedgerError: Outcomes and reservations differ, in their order at least; or the rent is
            neither nothing nor what was reserved, or for no work.
    """
    feedback, view = result.feedback, result.feedback.view
    clients = view.pair_client[feedback.pairs]
    edges = view.pair_edge[feedback.pairs].tolist()
    ended = list(zip(clients.tolist(), edges, strict=True))
    reserved = [(r.client, r.edge) for r in reservations if r.client is not None]
    if ended != reserved or view.round != result.round:
        missing = {client for client, _ in reserved} - {client for client, _ in ended}
        unknown = {client for client, _ in set(ended) - set(reserved)}
        raise LedgerError(
            f"round {result.round}: no outcome for clients {sorted(missing)[:10]}, "
            f"outcomes without a reservation for {sorted(unknown)[:10]}"
        )
    rent, rents = feedback.rent_micro, [r.price_micro for r in reservations if r.client is None]
    paid = clients[~feedback.void].tolist()
    if rent not in {0, *rents} or (rent and not paid):
        raise LedgerError(f"the rent is {rent}, which was not reserved or is for no work")
    return frozenset([*paid, *(None for due in rents if paid and due == rent)])


def end_entries(
    db: Database,
    run_id: str,
    round_: int,
    reservations: Sequence[Reservation],
    paid: Collection[int | None] = (),
) -> None:
    """Settle what is paid, and void every other reservation of a round."""
    moves = [
        _transfer(run_id, round_, "settle" if r.client in paid else "void", r) for r in reservations
    ]
    now = db.clock_ms()
    db.ledger.append(run_id, moves[:1], now)
    db.checkpoint("settle.first-entry")
    db.ledger.append(run_id, moves[1:], now)


def close_round(db: Database, run_id: str, result: Settle) -> None:
    """Write how each client and each edge ended a round, and the end of the round."""
    sql, key = db.connection, (run_id, result.round)
    f, d = result.feedback, result.details
    columns: dict[str, Sequence[object]] = {
        "client": f.view.pair_client[f.pairs].tolist(),
        "in_time": f.X.tolist(),
    }
    for name in (*FLAGS, *COUNTS, *SECONDS, *LOSSES):
        column = getattr(f, name)
        columns[name] = [None] * len(f.pairs) if column is None else column.tolist()
    for name in _DETAILS:
        column = getattr(d, name)
        columns[name] = column if isinstance(column, tuple) else column.tolist()
    # NaN becomes NULL.
    sql.executemany(
        f"INSERT INTO outcomes (run_id, round, {', '.join(columns)}) "  # noqa: S608 - constants
        f"VALUES ({', '.join('?' * (2 + len(columns)))})",
        [(*key, *row) for row in zip(*columns.values(), strict=True)],
    )
    sql.executemany(
        "INSERT INTO edge_results (run_id, round, edge, failed, model, weight, local_steps) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (*key, edge.index, edge.failed, edge.model, edge.weight, edge.local_steps)
            for edge in result.edges
        ],
    )
    sql.execute(
        "UPDATE rounds SET state = 'done', psi = ?, timing = ?, reason = ?, closed_ms = ? "
        "WHERE run_id = ? AND round = ?",
        (f.psi, json.dumps(dict(result.timing_ms)), result.reason, db.clock_ms(), *key),
    )
    facts.bind(db.ledger, sql, facts.OUTCOME, *key, at_ms=db.clock_ms())


def insert_scores(db: Database, run_id: str, result: Settle) -> None:
    """Write the devices' score of the model that the round began with, and the training loss."""
    found = result.details
    metrics: dict[str, float] = {}
    if found.score_n:
        metrics = {DEVICE_SCORE.key: found.score, DEVICE_SAMPLES: float(found.score_n)}
    if math.isfinite(found.train_loss):
        metrics[TRAIN_LOSS.key] = found.train_loss
    row = db.connection.execute(
        "SELECT digest FROM models WHERE run_id = ? ORDER BY round DESC LIMIT 1", (run_id,)
    ).fetchone()
    insert_metrics(db, run_id, result.round, row["digest"] if row else "", metrics)


# --------------------------------------------------------------------- voiding


def void_open(db: Database, run_id: str, reason: str) -> tuple[int, ...]:
    """Void every open round of a run; return their numbers."""
    rounds = open_rounds(db.connection, run_id)
    for round_ in rounds:
        end_entries(db, run_id, round_, reservations_of(db.connection, run_id, round_))
        db.connection.execute(
            "UPDATE rounds SET state = 'void', reason = ?, closed_ms = ? "
            "WHERE run_id = ? AND round = ?",
            (reason, db.clock_ms(), run_id, round_),
        )
        facts.bind(db.ledger, db.connection, facts.OUTCOME, run_id, round_, at_ms=db.clock_ms())
    return rounds


def open_rounds(sql: sqlite3.Connection, run_id: str) -> tuple[int, ...]:
    """Return the rounds that have not ended."""
    rows = sql.execute(
        "SELECT round FROM rounds WHERE run_id = ? AND state = 'open' ORDER BY round", (run_id,)
    )
    return tuple(row["round"] for row in rows)


# -------------------------------------------------------------------- learning


def pruned_until(sql: sqlite3.Connection, run_id: str) -> int:
    """Return the last round of which what it saw and decided is gone; 0 for none."""
    query = "SELECT COALESCE(MAX(round), 0) FROM pruned WHERE run_id = ?"
    return max(int(sql.execute(query, (run_id,)).fetchone()[0]), closed_until(sql, run_id))


def settled(
    sql: sqlite3.Connection, run_id: str, *, since: int = 0, before: int = MAX_COUNT
) -> Iterator[tuple[Feedback, Controls]]:
    """Yield what was learnt of every settled round after `since` and `before` another, in order.

    Raises:
        PrunedRoundError: What the first of them saw is gone.
    """
    if since < (last := pruned_until(sql, run_id)) and since + 1 < before:
        raise PrunedRoundError(run_id, since + 1, last + 1)
    rows = sql.execute(
        f"SELECT r.*, {RENT_PAID} AS rent_paid, e.mode FROM rounds r "  # noqa: S608 - constant
        "LEFT JOIN evaluations e USING (run_id, round) "
        "WHERE r.run_id = ? AND r.round > ? AND r.round < ? AND r.state = 'done' ORDER BY r.round",
        (run_id, since, before),
    )
    for row in rows:
        view, selection = unpack_view(row["view"]), unpack_selection(row["selection"])
        yield _feedback(sql, row, view, selection.pairs), _controls(row)


def logged(sql: sqlite3.Connection, run_id: str) -> Iterator[Logged]:
    """Yield every round that has ended, in order.

    Raises:
        PrunedRoundError: What the first of them saw is gone.
    """
    if last := pruned_until(sql, run_id):
        raise PrunedRoundError(run_id, 1, last + 1)
    moved = dict(
        sql.execute(
            "SELECT COALESCE(round, 0), SUM((target = ?1) * amount_micro "
            "- (source = ?1) * amount_micro) FROM entries WHERE run_id = ?2 GROUP BY 1",
            (TREASURY, run_id),
        ).fetchall()
    )
    unlimited = sql.execute("SELECT unlimited FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
    rows = sql.execute(
        f"SELECT r.*, {RENT_PAID} AS rent_paid, e.mode FROM rounds r "  # noqa: S608 - constant
        "LEFT JOIN evaluations e USING (run_id, round) "
        "WHERE r.run_id = ? AND r.state <> 'open' ORDER BY r.round",
        (run_id,),
    )
    free = moved.get(0, 0)
    for row in rows:
        view, selection = unpack_view(row["view"]), unpack_selection(row["selection"])
        done = row["state"] == "done"
        yield Logged(
            view=view,
            selection=selection,
            feedback=_feedback(sql, row, view, selection.pairs) if done else None,
            controls=_controls(row),
            free_micro=None if unlimited else free - row["rent_micro"],
        )
        free += moved.get(row["round"], 0)


def _controls(row: sqlite3.Row) -> Controls:
    return unpack_controls(row["controls"]) if row["controls"] else PLAIN


def _feedback(
    sql: sqlite3.Connection, row: sqlite3.Row, view: RoundView, pairs: IntArray
) -> Feedback:
    key = (row["run_id"], row["round"])
    names = ", ".join(f"o.{name}" for name in OUTCOME)
    outcomes = sql.execute(
        f"SELECT {names} FROM outcomes o JOIN reservations v USING (run_id, round, client) "  # noqa: S608 - constants
        "WHERE o.run_id = ? AND o.round = ? ORDER BY v.place",
        key,
    ).fetchall()
    columns: dict[str, list[Any]] = {name: [] for name in OUTCOME}
    columns.update(zip(OUTCOME, map(list, zip(*outcomes, strict=True)), strict=False))
    if columns["client"] != view.pair_client[pairs].tolist():
        raise RecordError("outcomes", f"of round {row['round']} are not those of its plan")
    arrays: dict[str, Any] = {
        name: np.array(columns[name], dtype=dtype)
        for group, dtype in _DTYPES
        for name in group
        if name not in _OPTIONAL or None not in columns[_OPTIONAL[name]]
    }
    opinions = None
    if row["mode"] == "report":
        found = sql.execute(
            "SELECT client, score FROM opinions WHERE run_id = ? AND round = ?", key
        ).fetchall()
        client = np.array([opinion["client"] for opinion in found], dtype=np.int64)
        score = np.array([opinion["score"] for opinion in found], dtype=np.float64)
        opinions = by_client(client, score, len(view.client_price))
    in_time = np.array(columns["in_time"], dtype=np.bool_)
    said = columns["status"], columns["reason"]
    believed = evidence(
        view.pair_edge[pairs].astype(np.int64),
        norm=np.array(columns["norm"], dtype=np.float64),
        samples=arrays["num_samples"],
        reason=columns["reason"],
        valid=~arrays["void"],
    )
    return Feedback(
        view=view,
        pairs=pairs,
        X=in_time,
        ending=endings_of(*said, in_time, arrays["void"]),
        loss=np.array(columns["loss"], dtype=np.float64),
        evidence=believed,
        psi=row["psi"],
        rent_micro=row["rent_paid"],
        opinions=opinions,
        **arrays,
    )
