"""Rounds in the store's transactions: their plans, and how they ended."""

# ruff: noqa: S608 - every query is made of constants

import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from fedagent_coordinator.core.effects import Reserve, Settle
from fedagent_coordinator.errors import InvalidSelectionError, LedgerError
from fedagent_coordinator.policies.selection import check_selection, check_view, spent_per_edge
from fedagent_protocol.messages import OutcomeStatus
from fedagent_task.scoring.measures import DEVICE_SCORE, TRAIN_LOSS

from .database import Database
from .learning import COLUMNS
from .records import pack

DEVICE_SAMPLES = "device_samples"
"""On how many samples a score by devices rests."""
_DETAILS = ("status", "reason", "weight", "norm")
_PROOF = ("claim", "public", "signature")
_UNSIGNED = (None, None, None)


# ------------------------------------------------------------------- reserving


def check_plan(plan: Reserve) -> int:
    """Return what a plan reserves for clients and rent, in micro-credits.

    Raises:
        LedgerError: An edge's budget does not suffice.
        InvalidSelectionError: The selection breaks another constraint.
    """
    view, pairs = plan.view, plan.selection.pairs
    if view.round != plan.round or len(plan.context_seq) != len(pairs):
        raise InvalidSelectionError("plan", plan.round, "view and selection are of another round")
    check_view(view)
    for edge, micro in enumerate(spent_per_edge(view, pairs)):
        if micro > (budget := int(view.edge_budget[edge])):
            raise overspent(f"edge {edge}", wanted_micro=micro, free_micro=budget)
    check_selection(view, pairs)
    placement = plan.controls.placement
    rent = 0 if placement.edge is None else placement.rent_micro
    return rent + int(view.client_price[view.pair_client[pairs]].sum())


def overspent(payer: str, *, wanted_micro: int, free_micro: int) -> LedgerError:
    """Return the error of a round that wants more than is free at an edge or in the run."""
    return LedgerError(f"{payer} has {free_micro} micro-credits, the round needs {wanted_micro}")


def insert_plan(db: Database, run_id: str, plan: Reserve, *, policy: str, total: int) -> None:
    """Write a round with its orders, and take their money."""
    saw = (
        pack(replace(plan.view, truth=None)),
        pack(plan.selection),
        b"" if plan.controls.plain else pack(plan.controls),
    )
    key, sql = (run_id, plan.round), db.connection
    placement = plan.controls.placement
    rent = 0 if placement.edge is None else placement.rent_micro
    sql.execute(
        "INSERT INTO rounds (run_id, round, state, policy, view, selection, controls, saw, "
        "rented_edge, rent_micro, opened_ms) VALUES (?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, policy, *saw, digest_of_saw(*saw), placement.edge, rent, db.clock_ms()),
    )
    pairs = plan.selection.pairs
    clients = plan.view.pair_client[pairs]
    columns = (
        clients.tolist(),
        plan.view.pair_edge[pairs].tolist(),
        plan.view.client_price[clients].tolist(),
    )
    sql.executemany(
        "INSERT INTO orders (run_id, round, place, client, edge, price_micro) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [(*key, place, *row) for place, row in enumerate(zip(*columns, strict=True))],
    )
    sql.executemany(
        "UPDATE clients SET ordered = ordered + 1, released = released + 1 "
        "WHERE run_id = ? AND idx = ?",
        [(run_id, client) for client in columns[0]],
    )
    db.move("reserve", *key, total)


def digest_of_saw(view: bytes, selection: bytes, controls: bytes) -> bytes:
    """Return what binds what a round saw and decided, also when that is gone."""
    parts = (hashlib.sha256(part).digest() for part in (view, selection, controls))
    return hashlib.sha256(b"".join(parts)).digest()


# -------------------------------------------------------------------- settling


def settle(db: Database, run_id: str, result: Settle) -> None:
    """Write how each order and each edge ended a round, its end, and move its money.

    Raises:
        LedgerError: Outcomes and orders differ, in their order at least; or the rent is neither
            nothing nor what was reserved, or for no work.
    """
    sql, key, f, d = db.connection, (run_id, result.round), result.feedback, result.details
    clients = f.view.pair_client[f.pairs].tolist()
    _check_ends(sql, run_id, result, clients)
    prices = f.view.client_price[clients]
    paid = int(prices[~f.void].sum())
    columns: dict[str, Sequence[Any]] = {"in_time": f.X.tolist()}
    for name in COLUMNS:
        column = getattr(f, name)
        columns[name] = [None] * len(f.pairs) if column is None else column.tolist()
    for name in _DETAILS:
        column = getattr(d, name)
        columns[name] = column if isinstance(column, tuple) else column.tolist()
    proofs = [
        structs.astuple(result.proofs[client])
        if client in result.proofs and not void
        else _UNSIGNED
        for client, void in zip(clients, columns["void"], strict=True)
    ]
    values = [
        (*row, *proof)
        for row, proof in zip(zip(*columns.values(), strict=True), proofs, strict=True)
    ]
    # NaN becomes NULL.
    sql.executemany(
        f"UPDATE orders SET {', '.join(f'{name} = ?' for name in (*columns, *_PROOF))} "
        "WHERE run_id = ? AND round = ? AND client = ?",
        [(*row, *key, client) for row, client in zip(values, clients, strict=True)],
    )
    db.checkpoint("settle.half")
    _count_clients(sql, result, run_id, clients, columns)
    _close_edges(sql, result, run_id)
    sql.execute(
        "UPDATE rounds SET state = 'done', psi = ?, timing = ?, reason = ?, closed_ms = ?, "
        "rent_paid_micro = ? WHERE run_id = ? AND round = ?",
        (
            *(f.psi, json.dumps(dict(result.timing_ms)), result.reason, db.clock_ms()),
            *(f.rent_micro, *key),
        ),
    )
    _insert_scores(sql, run_id, result)
    reserved = reserved_micro(sql, *key)
    db.move("settle", *key, paid + f.rent_micro, reserved_micro=reserved)


def _check_ends(sql: sqlite3.Connection, run_id: str, result: Settle, clients: list[int]) -> None:
    feedback, view = result.feedback, result.feedback.view
    edges = view.pair_edge[feedback.pairs].tolist()
    ended = list(zip(clients, edges, strict=True))
    key = (run_id, result.round)
    ordered = [
        tuple(row)
        for row in sql.execute(
            "SELECT client, edge FROM orders WHERE run_id = ? AND round = ? ORDER BY place", key
        )
    ]
    if ended != ordered or view.round != result.round:
        missing = {client for client, _ in ordered} - set(clients)
        unknown = {client for client, _ in set(ended) - set(ordered)}
        raise LedgerError(
            f"round {result.round}: no outcome for clients {sorted(missing)[:10]}, "
            f"outcomes without a reservation for {sorted(unknown)[:10]}"
        )
    (due,) = sql.execute(
        "SELECT rent_micro FROM rounds WHERE run_id = ? AND round = ?", key
    ).fetchone()
    rent = feedback.rent_micro
    if rent not in {0, due} or (rent and feedback.void.all()):
        raise LedgerError(f"the rent is {rent}, which was not reserved or is for no work")


def _count_clients(
    sql: sqlite3.Connection,
    result: Settle,
    run_id: str,
    clients: Sequence[int],
    columns: dict[str, Sequence[Any]],
) -> None:
    """Add to what each client did in all rounds."""
    names = ("in_time", "used", "void", "status", "reason")
    prices = result.feedback.view.client_price[clients].tolist()
    rows = zip(clients, prices, *(columns[name] for name in names), strict=True)
    sql.executemany(
        "UPDATE clients SET in_time = in_time + ?, used = used + ?, paid = paid + ?, "
        "paid_micro = paid_micro + ?, released = released - ?, "
        "last_round = ?, last_status = ?, last_reason = ? WHERE run_id = ? AND idx = ?",
        [
            (
                *(in_time, used, not void, 0 if void else price),
                *(status == OutcomeStatus.DECLINED.value, result.round, status, reason),
                *(run_id, client),
            )
            for client, price, in_time, used, void, status, reason in rows
        ],
    )


def _close_edges(sql: sqlite3.Connection, result: Settle, run_id: str) -> None:
    sql.executemany(
        "INSERT INTO edge_results (run_id, round, edge, failed, model, weight, local_steps) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (run_id, result.round, e.index, e.failed, e.model, e.weight, e.local_steps)
            for e in result.edges
        ],
    )
    sql.executemany(
        "UPDATE edges SET ordered = ordered + ?, in_time = in_time + ?, "
        "spent_micro = spent_micro + ?, last_round = ?, failed = ? WHERE run_id = ? AND idx = ?",
        [
            (e.ordered, e.in_time, e.spent_micro, result.round, e.failed, run_id, e.index)
            for e in result.edges
        ],
    )
    sql.execute(
        "UPDATE edges SET rent_micro = rent_micro + ?1 WHERE run_id = ?2 AND idx = "
        "(SELECT rented_edge FROM rounds WHERE run_id = ?2 AND round = ?3)",
        (result.feedback.rent_micro, run_id, result.round),
    )


def reserved_micro(sql: sqlite3.Connection, run_id: str, round_: int) -> int:
    """Return what a round reserved."""
    (amount,) = sql.execute(
        "SELECT amount_micro FROM entries WHERE run_id = ? AND round = ? AND kind = 'reserve'",
        (run_id, round_),
    ).fetchone()
    return int(amount)


def _insert_scores(sql: sqlite3.Connection, run_id: str, result: Settle) -> None:
    """Write the devices' score of the model that the round began with, and the training loss."""
    found = result.details
    metrics: dict[str, float] = {}
    if found.score_n:
        metrics = {DEVICE_SCORE.key: found.score, DEVICE_SAMPLES: float(found.score_n)}
    if math.isfinite(found.train_loss):
        metrics[TRAIN_LOSS.key] = found.train_loss
    row = sql.execute(
        "SELECT digest FROM models WHERE run_id = ? ORDER BY round DESC LIMIT 1", (run_id,)
    ).fetchone()
    insert_metrics(sql, run_id, result.round, row["digest"] if row else "", metrics)


def insert_metrics(
    sql: sqlite3.Connection, run_id: str, round_: int, digest: str, metrics: Mapping[str, float]
) -> None:
    """Write what was measured of a model in a round.

    Raises:
        LedgerError: A value is not finite.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise LedgerError(f"metric {name} is {value}")
    sql.executemany(
        "INSERT OR REPLACE INTO metrics (run_id, round, digest, metric, value) "
        "VALUES (?, ?, ?, ?, ?)",
        [(run_id, round_, digest, name, value) for name, value in metrics.items()],
    )


def void_open(db: Database, run_id: str, reason: str) -> tuple[int, ...]:
    """Void every open round of a run; return their numbers."""
    sql, rounds = db.connection, open_rounds(db.connection, run_id)
    for round_ in rounds:
        sql.execute(
            "UPDATE rounds SET state = 'void', reason = ?, closed_ms = ? "
            "WHERE run_id = ? AND round = ?",
            (reason, db.clock_ms(), run_id, round_),
        )
        reserved = reserved_micro(sql, run_id, round_)
        db.move("void", run_id, round_, 0, reserved_micro=reserved)
    return rounds


def open_rounds(sql: sqlite3.Connection, run_id: str) -> tuple[int, ...]:
    """Return the rounds that have not ended."""
    rows = sql.execute(
        "SELECT round FROM rounds WHERE run_id = ? AND state = 'open' ORDER BY round", (run_id,)
    )
    return tuple(row["round"] for row in rows)
