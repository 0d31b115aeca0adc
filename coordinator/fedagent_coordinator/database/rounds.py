"""Writing a round: its plan and reservations, then how each client ended; with their entries.

All of it happens inside a transaction that the store began.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fedagent_coordinator.core.effects import Reserve, Settle
from fedagent_coordinator.errors import (
    BudgetExceededError,
    InvalidAmountError,
    InvalidSelectionError,
    OutcomeMismatchError,
)
from fedagent_coordinator.policies.selection import check_selection, check_view, spent_per_edge
from fedagent_coordinator.records import pack_controls, pack_selection, pack_view
from fedagent_task.measures import DEVICE_SCORE, TRAIN_LOSS

from .connection import Database
from .ledger import TREASURY, Transfer, paid_to, rent_of, reserved_at
from .models import insert_metrics
from .rows import fetch

DEVICE_SAMPLES = "device_samples"
"""On how many samples a score by devices rests."""

FLAGS = ("used", "void", "censored")
COUNTS = ("num_samples", "arrivals", "steps", "iterations")
SECONDS = ("tau_s", "dt_s", "lc_s", "ut_s", "train_s", "seconds_per_iteration")
_DETAILS = ("status", "reason", "weight", "norm", "loss")
OUTCOME = ("client", "in_time", *FLAGS, *COUNTS, *SECONDS, *_DETAILS)


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reserved client of a round."""

    client: int
    edge: int
    price_micro: int


@dataclass(frozen=True, slots=True)
class Rental:
    """The edge that was rented for a round."""

    edge: int
    rent_micro: int


# ------------------------------------------------------------------- reserving


def checked_spending(plan: Reserve) -> dict[int, int]:
    """Return what each edge with orders pays, or refuse the plan.

    Raises:
        BudgetExceededError: An edge's budget does not suffice.
        InvalidSelectionError: The selection breaks another constraint.
    """
    view, pairs = plan.view, plan.selection.pairs
    if view.round != plan.round or len(plan.context_seq) != len(pairs):
        raise InvalidSelectionError("plan", plan.round, "view and selection are of another round")
    check_view(view)
    spent = spent_per_edge(view, pairs)
    for edge, micro in enumerate(spent):
        if micro > (budget := int(view.edge_budget[edge])):
            raise BudgetExceededError(
                scope="edge", edge=edge, wanted_micro=micro, free_micro=budget
            )
    check_selection(view, pairs)
    return {edge: spent[edge] for edge in sorted(set(view.pair_edge[pairs].tolist()))}


def rental_of(plan: Reserve) -> Rental | None:
    """Return the edge that a plan rents, if any."""
    placement = plan.controls.placement
    return None if placement.edge is None else Rental(placement.edge, placement.rent_micro)


def insert_plan(
    db: Database, run_id: str, plan: Reserve, *, policy: str, spent: dict[int, int]
) -> None:
    """Write a round with its budgets and reservations, and take their money."""
    view, selection = pack_view(plan.view), pack_selection(plan.selection)
    controls = b"" if plan.controls.plain else pack_controls(plan.controls)
    rental, planned, now = rental_of(plan), _planned(plan), db.clock_ms()
    row = {
        "run_id": run_id,
        "round": plan.round,
        "policy": policy,
        "view": view,
        "selection": selection,
        "controls": controls,
        "rented_edge": None if rental is None else rental.edge,
        "rent_micro": 0 if rental is None else rental.rent_micro,
        "plan_sha256": plan_seal(view, selection, controls),
        "opened_ms": now,
    }
    db.connection.execute(
        f"INSERT INTO rounds (state, {', '.join(row)}) "  # noqa: S608 - constants
        f"VALUES ('open', {', '.join(f':{name}' for name in row)})",
        row,
    )
    db.connection.executemany(
        "INSERT INTO edge_budgets (run_id, round, edge, budget_micro, reserved_micro) "
        "VALUES (?, ?, ?, ?, ?)",
        [
            (run_id, plan.round, edge, int(plan.view.edge_budget[edge]), micro)
            for edge, micro in spent.items()
        ],
    )
    db.connection.executemany(
        "INSERT INTO reservations (run_id, round, client, edge, price_micro, context_seq, place) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (run_id, plan.round, r.client, r.edge, r.price_micro, context_seq, place)
            for place, (r, context_seq) in enumerate(
                zip(planned, plan.context_seq.tolist(), strict=True)
            )
        ],
    )
    moves = [_reserved(run_id, plan.round, r.edge, r.price_micro, r.client) for r in planned]
    if rental is not None:
        moves.insert(0, _reserved(run_id, plan.round, rental.edge, rental.rent_micro))
    db.ledger.append(run_id, moves, now)


def plan_seal(view: bytes, selection: bytes, controls: bytes) -> bytes:
    """Return the digest that seals what a round decided."""
    parts = (view, selection, controls)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _planned(plan: Reserve) -> list[Reservation]:
    view, pairs = plan.view, plan.selection.pairs
    clients = view.pair_client[pairs]
    prices = view.client_price[clients].tolist()
    columns = (clients.tolist(), view.pair_edge[pairs].tolist(), prices)
    return [Reservation(*row) for row in zip(*columns, strict=True)]


def _key(run_id: str, round_: int, client: int | None, step: str) -> str:
    return f"{run_id}/{round_}/{'rent' if client is None else client}/{step}"


def _reserved(
    run_id: str, round_: int, edge: int, amount_micro: int, client: int | None = None
) -> Transfer:
    return Transfer(
        kind="reserve",
        source=TREASURY,
        target=reserved_at(edge),
        amount_micro=amount_micro,
        key=_key(run_id, round_, client, "reserve"),
        round=round_,
        edge=edge,
        client=client,
    )


def _ended(
    run_id: str, round_: int, edge: int, amount_micro: int, client: int | None = None, *, paid: bool
) -> Transfer:
    """Return a settle or a void: both have the same key, so one can be only."""
    account = rent_of(edge) if client is None else paid_to(client)
    return Transfer(
        kind="settle" if paid else "void",
        source=reserved_at(edge),
        target=account if paid else TREASURY,
        amount_micro=amount_micro,
        key=_key(run_id, round_, client, "end"),
        round=round_,
        edge=edge,
        client=client,
    )


# -------------------------------------------------------------------- settling


def reservations_of(sql: sqlite3.Connection, run_id: str, round_: int) -> list[Reservation]:
    """Return whom a round reserved, in the policy's order."""
    rows = sql.execute(
        "SELECT client, edge, price_micro FROM reservations WHERE run_id = ? AND round = ? "
        "ORDER BY place",
        (run_id, round_),
    )
    return [Reservation(**row) for row in rows]


def rental_in(sql: sqlite3.Connection, run_id: str, round_: int) -> Rental | None:
    """Return the edge that a round rented, if any."""
    found = fetch(
        sql,
        Rental,
        "SELECT rented_edge AS edge, rent_micro FROM rounds WHERE run_id = ? AND round = ? "
        "AND rented_edge IS NOT NULL",
        (run_id, round_),
    )
    return found[0] if found else None


def checked_outcomes(result: Settle, reservations: Sequence[Reservation]) -> frozenset[int]:
    """Return the clients that are paid.

    Raises:
        OutcomeMismatchError: Outcomes and reservations differ, in their order at least.
    """
    feedback, view = result.feedback, result.feedback.view
    clients = view.pair_client[feedback.pairs]
    edges = view.pair_edge[feedback.pairs].tolist()
    ended = list(zip(clients.tolist(), edges, strict=True))
    reserved = [(r.client, r.edge) for r in reservations]
    if ended != reserved or view.round != result.round:
        missing = {client for client, _ in reserved} - {client for client, _ in ended}
        unknown = {client for client, _ in set(ended) - set(reserved)}
        raise OutcomeMismatchError(result.round, tuple(sorted(missing)), tuple(sorted(unknown)))
    return frozenset(clients[~feedback.void].tolist())


def checked_rent(result: Settle, rental: Rental | None) -> bool:
    """Return whether the rent is due.

    Raises:
        InvalidAmountError: Neither nothing is to be paid nor what was reserved.
    """
    paid = result.feedback.rent_micro
    if paid not in {0, 0 if rental is None else rental.rent_micro}:
        raise InvalidAmountError("the rent", paid)
    return rental is not None and paid == rental.rent_micro


def end_entries(
    db: Database,
    run_id: str,
    round_: int,
    reservations: Sequence[Reservation],
    paid: frozenset[int],
    *,
    rent_due: bool,
) -> None:
    """Settle or void every reservation of a round."""
    moves = [
        _ended(run_id, round_, r.edge, r.price_micro, r.client, paid=r.client in paid)
        for r in reservations
    ]
    rental = rental_in(db.connection, run_id, round_)
    if rental is not None:
        moves.insert(0, _ended(run_id, round_, rental.edge, rental.rent_micro, paid=rent_due))
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
    for name in (*FLAGS, *COUNTS, *SECONDS):
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
        "INSERT INTO edge_results (run_id, round, edge, failed, model, weight) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [(*key, edge.index, edge.failed, edge.model, edge.weight) for edge in result.edges],
    )
    sql.execute(
        "UPDATE rounds SET state = 'done', outcomes_sha256 = ?, psi = ?, timing = ?, reason = ?, "
        "closed_ms = ? WHERE run_id = ? AND round = ?",
        (
            outcomes_seal(sql, run_id, result.round, f.psi),
            f.psi,
            json.dumps(dict(result.timing_ms)),
            result.reason,
            db.clock_ms(),
            *key,
        ),
    )


def outcomes_seal(sql: sqlite3.Connection, run_id: str, round_: int, psi: float | None) -> bytes:
    """Return the digest that seals how the clients and edges of a round ended."""
    cursor = sql.cursor()
    cursor.row_factory = None  # tuples, in the order of the columns that the queries name
    outcomes, edges = (cursor.execute(query, (run_id, round_)).fetchall() for query in _SEALED)
    return hashlib.sha256(msgspec.msgpack.encode([outcomes, edges, psi])).digest()


_SEALED = (
    f"SELECT {', '.join(OUTCOME)} FROM outcomes WHERE run_id = ? AND round = ? ORDER BY client",  # noqa: S608 - constants
    "SELECT edge, failed, model, weight FROM edge_results WHERE run_id = ? AND round = ?",
)


def insert_scores(sql: sqlite3.Connection, run_id: str, result: Settle, digest: str) -> None:
    """Write the devices' score of the model that the round began with, and the training loss."""
    found = result.details
    metrics: dict[str, float] = {}
    if found.score_n:
        metrics = {DEVICE_SCORE.key: found.score, DEVICE_SAMPLES: float(found.score_n)}
    if math.isfinite(found.train_loss):
        metrics[TRAIN_LOSS.key] = found.train_loss
    insert_metrics(sql, run_id, result.round, digest, metrics)


# --------------------------------------------------------------------- voiding


def void_open(db: Database, run_id: str, reason: str) -> tuple[int, ...]:
    """Void every open round of a run; return their numbers."""
    rounds = open_rounds(db.connection, run_id)
    for round_ in rounds:
        reservations = reservations_of(db.connection, run_id, round_)
        end_entries(db, run_id, round_, reservations, frozenset(), rent_due=False)
        db.connection.execute(
            "UPDATE rounds SET state = 'void', reason = ?, closed_ms = ? "
            "WHERE run_id = ? AND round = ?",
            (reason, db.clock_ms(), run_id, round_),
        )
    return rounds


def open_rounds(sql: sqlite3.Connection, run_id: str) -> tuple[int, ...]:
    """Return the rounds that have not ended."""
    rows = sql.execute(
        "SELECT round FROM rounds WHERE run_id = ? AND state = 'open' ORDER BY round", (run_id,)
    )
    return tuple(row["round"] for row in rows)
