"""Rounds in the books' transactions: their plans, and how they ended."""

# ruff: noqa: S608 - every query is made of constants

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from fedagent_coordinator.books.database import Database
from fedagent_coordinator.books.ledger import checked_micro
from fedagent_coordinator.books.records import COLUMNS, pack, saw
from fedagent_coordinator.core.effects import Reserve, Settle
from fedagent_coordinator.errors import LedgerError, PolicyError
from fedagent_coordinator.policies.base import IntArray, RoundView
from fedagent_coordinator.policies.selection import check_selection, check_view, spent_per_edge
from fedagent_protocol.errors import credits_text
from fedagent_task.scoring.measures import DEVICE_SCORE, TRAIN_LOSS

DEVICE_SAMPLES = "device_samples"
"""On how many samples a score by devices rests."""
_ORDER = ("place", "client", "edge", "price_micro")
_ENDED = ("in_time", *COLUMNS, "status", "reason", "weight", "norm")
_PROOF = ("claim", "public", "signature")
_UNSIGNED = (None, None, None)
_COUNTED = """UPDATE clients SET ordered = ordered + 1,
    in_time = clients.in_time + IFNULL(o.in_time, 0), used = clients.used + IFNULL(o.used, 0),
    paid = paid + IFNULL(NOT unpaid, 0),
    paid_micro = paid_micro + IFNULL(NOT unpaid, 0) * price_micro,
    released = released + (status IS NOT 'declined'),
    last_round = iif(status IS NULL, last_round, round), last_status = IFNULL(status, last_status),
    last_reason = IFNULL(reason, last_reason)
    FROM (SELECT * FROM orders WHERE run_id = ?1 AND round = ?2) o
    WHERE clients.run_id = ?1 AND idx = o.client"""
"""An update may have left each client that was ordered, but for one that declined."""
Orders = list[tuple[int, int, int, int]]
"""Place, client, edge and price of each order of a round."""


# ------------------------------------------------------------------- reserving


def check_plan(plan: Reserve) -> int:
    """Return what a plan reserves for clients and rent, in micro-credits.

    Raises:
        LedgerError: An edge's budget does not suffice.
        PolicyError: The selection breaks another constraint.
    """
    view, pairs = plan.view, plan.selection.pairs
    if view.round != plan.round or len(plan.context_seq) != len(pairs):
        raise PolicyError(
            f"selection breaks plan at {plan.round}: view and selection are of another round"
        )
    check_view(view)
    for edge, micro in enumerate(spent_per_edge(view, pairs)):
        if micro > (budget := int(view.edge_budget[edge])):
            raise overspent(f"edge {edge}", wanted_micro=micro, free_micro=budget)
    check_selection(view, pairs)
    return _rent(plan) + int(view.client_price[view.pair_client[pairs]].sum())


def overspent(payer: str, *, wanted_micro: int, free_micro: int) -> LedgerError:
    """Return the error of a round that wants more than is free at an edge or in the run."""
    free, wanted = credits_text(free_micro), credits_text(wanted_micro)
    return LedgerError(f"{payer} has {free} credits, the round needs {wanted}")


def _rent(plan: Reserve) -> int:
    placement = plan.controls.placement
    return 0 if placement.edge is None else placement.rent_micro


def insert_plan(db: Database, run_id: str, plan: Reserve, *, policy: str, total: int) -> None:
    """Write a round, and take the money of its orders, which are in its selection until it ends."""
    sql = db.connection
    for table, used in (
        ("clients", plan.clients),
        ("edges", plan.view.pair_edge[plan.selection.pairs]),
    ):
        query = f"SELECT COALESCE(MAX(idx), -1) FROM {table} WHERE run_id = ?"
        if used.max(initial=-1) > sql.execute(query, (run_id,)).fetchone()[0]:
            raise LedgerError(f"the ledger refuses this: it has no such place in {table}")
    decided = (
        pack(replace(plan.view, truth=None)),
        pack(plan.selection),
        b"" if plan.controls.plain else pack(plan.controls),
    )
    sql.execute(
        "INSERT INTO rounds (run_id, round, state, policy, view, selection, controls, saw, "
        "ordered, reserved_micro, rented_edge, rent_micro, opened_ms) "
        "VALUES (?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(run_id, plan.round, policy, *decided, digest_of_saw(*decided)),
            *(len(plan.selection.pairs), checked_micro("reserve", total)),
            *(plan.controls.placement.edge, _rent(plan), db.clock_ms()),
        ),
    )
    db.append("reserve", run_id, plan.round, amount_micro=total)


def digest_of_saw(view: bytes, selection: bytes, controls: bytes) -> bytes:
    """Return what binds what a round saw and decided, also when that is gone."""
    parts = (hashlib.sha256(part).digest() for part in (view, selection, controls))
    return hashlib.sha256(b"".join(parts)).digest()


# -------------------------------------------------------------------- settling


def orders_of(view: RoundView, pairs: IntArray) -> Orders:
    """Return what a selection of pairs orders."""
    clients = view.pair_client[pairs]
    columns = (clients, view.pair_edge[pairs], view.client_price[clients])
    return list(zip(range(len(pairs)), *(column.tolist() for column in columns), strict=True))


def _insert_orders(
    sql: sqlite3.Connection, key: tuple[str, int], names: Sequence[str], rows: Iterable[Any]
) -> None:
    # NaN becomes NULL.
    sql.executemany(
        f"INSERT INTO orders (run_id, round, {', '.join(names)}) VALUES (?, ?{', ?' * len(names)})",
        [(*key, *row) for row in rows],
    )


def settle(db: Database, run_id: str, result: Settle, ordered: Orders | None) -> None:
    """Write how each order and each edge ended a round, its end, and move its money.

    Raises:
        LedgerError: Outcomes and orders differ, in their order at least; or the rent is neither
            nothing nor what was reserved, or for no work.
    """
    sql, key, f, d = db.connection, (run_id, result.round), result.feedback, result.details
    orders = orders_of(f.view, f.pairs)
    reserved = _check_ends(sql, key, result, orders, ordered)
    unpaid, columns = f.unpaid.tolist(), [getattr(f, name) for name in COLUMNS]
    ended = zip(
        f.X.tolist(),
        *([None] * len(orders) if one is None else one.tolist() for one in columns),
        *(d.status, d.reason, d.weight.tolist(), d.norm.tolist()),
        strict=True,
    )
    proofs = (
        structs.astuple(result.proofs[client])
        if client in result.proofs and not free
        else _UNSIGNED
        for (_, client, *_), free in zip(orders, unpaid, strict=True)
    )
    rows = [(*a, *b, *c) for a, b, c in zip(orders, ended, proofs, strict=True)]
    _insert_orders(sql, key, (*_ORDER, *_ENDED, *_PROOF), rows)
    db.checkpoint("settle.half")
    sql.execute(_COUNTED, key)
    _close_edges(sql, result, run_id)
    sql.execute(
        "UPDATE rounds SET state = 'done', psi = ?, timing = ?, reason = ?, closed_ms = ?, "
        "rent_paid_micro = ? WHERE run_id = ? AND round = ?",
        (
            *(f.psi, json.dumps(result.timing_ms), result.reason, db.clock_ms()),
            *(f.rent_micro, *key),
        ),
    )
    _insert_scores(sql, run_id, result)
    paid = sum(price for (*_, price), free in zip(orders, unpaid, strict=True) if not free)
    db.append("settle", *key, amount_micro=paid + f.rent_micro, reserved_micro=reserved)


def _check_ends(
    sql: sqlite3.Connection,
    key: tuple[str, int],
    result: Settle,
    ended: Orders,
    ordered: Orders | None,
) -> int:
    """Return what the round has reserved; read what was `ordered` where that is not known."""
    row = sql.execute("SELECT * FROM rounds WHERE run_id = ? AND round = ?", key).fetchone()
    if ordered is None:
        view, selection = saw(row)
        ordered = orders_of(view, selection.pairs)
    if ended != ordered or result.feedback.view.round != result.round:
        ours, others = ({client for _, client, _, _ in orders} for orders in (ordered, ended))
        raise LedgerError(
            f"round {result.round}: no outcome for clients {sorted(ours - others)[:10]}, "
            f"outcomes without a reservation for {sorted(others - ours)[:10]}"
        )
    rent = result.feedback.rent_micro
    if rent not in {0, row["rent_micro"]} or (rent and result.feedback.unpaid.all()):
        raise LedgerError(f"the rent is {rent}, which was not reserved or is for no work")
    return int(row["reserved_micro"])


def _close_edges(sql: sqlite3.Connection, result: Settle, run_id: str) -> None:
    sql.executemany(
        "INSERT INTO edge_results (run_id, round, edge, failed, model, weight, local_steps, "
        "norm) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (run_id, result.round, e.index, e.failed, e.model, e.weight, e.local_steps, e.norm)
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
    if result.feedback.rent_micro:
        sql.execute(
            "UPDATE edges SET rent_micro = rent_micro + ?1 WHERE run_id = ?2 AND idx = "
            "(SELECT rented_edge FROM rounds WHERE run_id = ?2 AND round = ?3)",
            (result.feedback.rent_micro, run_id, result.round),
        )


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
    sql = db.connection
    rows = sql.execute(
        "SELECT * FROM rounds WHERE run_id = ? AND state = 'open' ORDER BY round", (run_id,)
    ).fetchall()
    for row in rows:
        key = (run_id, row["round"])
        view, selection = saw(row)
        orders = orders_of(view, selection.pairs)
        _insert_orders(sql, key, _ORDER, orders)
        sql.execute(_COUNTED, key)
        sql.execute(
            "UPDATE rounds SET state = 'void', reason = ?, closed_ms = ? "
            "WHERE run_id = ? AND round = ?",
            (reason, db.clock_ms(), *key),
        )
        db.append("void", *key, reserved_micro=row["reserved_micro"])
    return tuple(row["round"] for row in rows)
