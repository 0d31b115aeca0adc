"""Writing one round into the database, inside a transaction that the store began."""

import hashlib
import json
import math
import sqlite3
from dataclasses import dataclass

from fedagent_task.measures import DEVICE_SCORE, TRAIN_LOSS

from .audit_rounds import plan_digest
from .core.effects import Reserve, Settle
from .database import Database
from .errors import (
    BudgetExceededError,
    InvalidAmountError,
    InvalidSelectionError,
    OutcomeMismatchError,
)
from .ledger import GRANTOR, TREASURY, Transfer, paid_to, rent_of, reserved_at
from .policies.base import RoundView
from .policies.selection import check_selection, check_view, spent_per_edge
from .records import pack_controls, pack_feedback, pack_selection, pack_view

DEVICE_SAMPLES = "device_samples"
"""On how many samples a score by devices rests."""


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


class RoundBook:
    """Rows and ledger entries of rounds."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def grant(self, run_id: str, amount_micro: int, key: str) -> None:
        """Add to the treasury of a run."""
        move = Transfer(
            kind="grant",
            source=GRANTOR,
            target=TREASURY,
            amount_micro=amount_micro,
            key=f"{run_id}/grant/{key}",
        )
        self._db.ledger.append(run_id, [move], self._db.clock_ms())

    def has_entry(self, key: str) -> bool:
        """Return whether an idempotency key was used."""
        row = self._db.connection.execute("SELECT 1 FROM entries WHERE key = ?", (key,)).fetchone()
        return row is not None

    def insert_plan(
        self,
        sql: sqlite3.Connection,
        run_id: str,
        plan: Reserve,
        policy: str,
        spent: dict[int, int],
    ) -> None:
        """Write the round, its budgets and its reservations."""
        view, selection = pack_view(plan.view), pack_selection(plan.selection)
        pairs, controls = plan.selection.pairs, plan.controls
        record = b"" if controls.plain else pack_controls(controls)
        sql.execute(
            "INSERT INTO rounds (run_id, round, state, policy, ordered, view, selection, "
            "plan_sha256, opened_ms) VALUES (?, ?, 'open', ?, ?, ?, ?, ?, ?)",
            (
                run_id,
                plan.round,
                policy,
                len(pairs),
                view,
                selection,
                plan_digest(view, selection, record),
                self._db.clock_ms(),
            ),
        )
        if record:
            rented = rental_of(plan)
            where = (None, 0) if rented is None else (rented.edge, rented.rent_micro)
            sql.execute(
                "INSERT INTO controls VALUES (?, ?, ?, ?, ?, ?)",
                (run_id, plan.round, controls.iterations, *where, record),
            )
        sql.executemany(
            "INSERT INTO edge_budgets VALUES (?, ?, ?, ?, ?)",
            [
                (run_id, plan.round, edge, int(plan.view.edge_budget[edge]), micro)
                for edge, micro in spent.items()
            ],
        )
        sql.executemany(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (run_id, plan.round, r.client, r.edge, r.price_micro, context_seq, place)
                for place, (r, context_seq) in enumerate(
                    zip(planned(plan), plan.context_seq.tolist(), strict=True)
                )
            ],
        )

    def reserve_entries(self, run_id: str, plan: Reserve) -> None:
        """Move the price of every chosen client, and the rent, out of the treasury."""
        moves = [*_rent_reserved(run_id, plan)]
        moves += [
            Transfer(
                kind="reserve",
                source=TREASURY,
                target=reserved_at(r.edge),
                amount_micro=r.price_micro,
                key=f"{run_id}/{plan.round}/{r.client}/reserve",
                round=plan.round,
                edge=r.edge,
                client=r.client,
            )
            for r in planned(plan)
        ]
        self._db.ledger.append(run_id, moves, self._db.clock_ms())

    def end_entries(
        self,
        run_id: str,
        round_: int,
        reservations: list[Reservation],
        paid: frozenset[int],
        *,
        rent_due: bool,
    ) -> None:
        """Settle or void every reservation: both have the same key, so one can be only."""
        rented = self.rental(run_id, round_)
        moves = [] if rented is None else [_rent_ended(run_id, round_, rented, due=rent_due)]
        moves += [
            Transfer(
                kind="settle" if r.client in paid else "void",
                source=reserved_at(r.edge),
                target=paid_to(r.client) if r.client in paid else TREASURY,
                amount_micro=r.price_micro,
                key=f"{run_id}/{round_}/{r.client}/end",
                round=round_,
                edge=r.edge,
                client=r.client,
            )
            for r in reservations
        ]
        now = self._db.clock_ms()
        self._db.ledger.append(run_id, moves[:1], now)
        self._db.checkpoint("settle.first-entry")
        self._db.ledger.append(run_id, moves[1:], now)

    def close_round(self, sql: sqlite3.Connection, run_id: str, result: Settle) -> None:
        """Mark a round as done, with its feedback."""
        feedback = pack_feedback(result.feedback)
        sql.execute(
            "UPDATE rounds SET state = 'done', feedback = ?, feedback_sha256 = ?, timing = ?, "
            "reason = ?, closed_ms = ? WHERE run_id = ? AND round = ?",
            (
                feedback,
                hashlib.sha256(feedback).digest(),
                json.dumps(dict(result.timing_ms)),
                result.reason,
                self._db.clock_ms(),
                run_id,
                result.round,
            ),
        )

    def void_open(self, sql: sqlite3.Connection, run_id: str, reason: str) -> tuple[int, ...]:
        """Void every open round of a run."""
        rounds = self.open_rounds(run_id)
        for round_ in rounds:
            reservations = self.reservations(run_id, round_)
            self.end_entries(run_id, round_, reservations, frozenset(), rent_due=False)
            sql.execute(
                "UPDATE rounds SET state = 'void', reason = ?, closed_ms = ? "
                "WHERE run_id = ? AND round = ?",
                (reason, self._db.clock_ms(), run_id, round_),
            )
        return rounds

    def open_rounds(self, run_id: str) -> tuple[int, ...]:
        """Return the rounds that have not ended."""
        rows = self._db.connection.execute(
            "SELECT round FROM rounds WHERE run_id = ? AND state = 'open' ORDER BY round",
            (run_id,),
        )
        return tuple(row[0] for row in rows)

    def reservations(self, run_id: str, round_: int) -> list[Reservation]:
        """Return whom a round reserved, in the policy's order."""
        rows = self._db.connection.execute(
            "SELECT client, edge, price_micro FROM reservations WHERE run_id = ? AND round = ? "
            "ORDER BY place",
            (run_id, round_),
        )
        return [Reservation(*row) for row in rows]

    def rental(self, run_id: str, round_: int) -> Rental | None:
        """Return the edge that a round rented, if any."""
        row = self._db.connection.execute(
            "SELECT edge, rent_micro FROM controls WHERE run_id = ? AND round = ? "
            "AND edge IS NOT NULL",
            (run_id, round_),
        ).fetchone()
        return None if row is None else Rental(*row)


def rental_of(plan: Reserve) -> Rental | None:
    """Return the edge that a plan rents, if any."""
    placement = plan.controls.placement
    return None if placement.edge is None else Rental(placement.edge, placement.rent_micro)


def _rent_reserved(run_id: str, plan: Reserve) -> list[Transfer]:
    rented = rental_of(plan)
    if rented is None:
        return []
    move = Transfer(
        kind="reserve",
        source=TREASURY,
        target=reserved_at(rented.edge),
        amount_micro=rented.rent_micro,
        key=f"{run_id}/{plan.round}/rent/reserve",
        round=plan.round,
        edge=rented.edge,
    )
    return [move]


def _rent_ended(run_id: str, round_: int, rented: Rental, *, due: bool) -> Transfer:
    return Transfer(
        kind="settle" if due else "void",
        source=reserved_at(rented.edge),
        target=rent_of(rented.edge) if due else TREASURY,
        amount_micro=rented.rent_micro,
        key=f"{run_id}/{round_}/rent/end",
        round=round_,
        edge=rented.edge,
    )


def checked_rent(result: Settle, rented: Rental | None) -> bool:
    """Return whether the rent is due, or refuse a rent that was not reserved."""
    paid = result.feedback.rent_micro
    if paid not in {0, 0 if rented is None else rented.rent_micro}:
        raise InvalidAmountError("the rent", paid)
    return rented is not None and paid == rented.rent_micro


def planned(plan: Reserve) -> list[Reservation]:
    """Return the reservations of a plan, in the policy's order."""
    view, pairs = plan.view, plan.selection.pairs
    clients = view.pair_client[pairs]
    return [
        Reservation(client, edge, price)
        for client, edge, price in zip(
            clients.tolist(),
            view.pair_edge[pairs].tolist(),
            view.client_price[clients].tolist(),
            strict=True,
        )
    ]


def checked_spending(plan: Reserve) -> dict[int, int]:
    """Return what each edge with orders pays, or refuse the plan."""
    view, pairs = plan.view, plan.selection.pairs
    if view.round != plan.round or len(plan.context_seq) != len(pairs):
        raise InvalidSelectionError("plan", plan.round, "view and selection are of another round")
    check_view(view)
    _check_edge_budgets(view, spent := spent_per_edge(view, pairs))
    check_selection(view, pairs)
    return {edge: spent[edge] for edge in sorted(set(view.pair_edge[pairs].tolist()))}


def _check_edge_budgets(view: RoundView, spent: list[int]) -> None:
    for edge, micro in enumerate(spent):
        if micro > int(view.edge_budget[edge]):
            raise BudgetExceededError(
                scope="edge",
                edge=edge,
                wanted_micro=micro,
                free_micro=int(view.edge_budget[edge]),
            )


def checked_outcomes(result: Settle, reservations: list[Reservation]) -> frozenset[int]:
    """Return the clients that are paid, or refuse outcomes of other clients or edges."""
    feedback = result.feedback
    view = feedback.view
    ended = dict(
        zip(
            view.pair_client[feedback.pairs].tolist(),
            view.pair_edge[feedback.pairs].tolist(),
            strict=True,
        )
    )
    reserved = {r.client: r.edge for r in reservations}
    if ended != reserved or view.round != result.round:
        raise OutcomeMismatchError(
            result.round,
            sorted(set(reserved) - set(ended)),
            sorted(client for client in ended if reserved.get(client) != ended[client]),
        )
    clients = view.pair_client[feedback.pairs]
    return frozenset(clients[~feedback.void].tolist())


def insert_scores(sql: sqlite3.Connection, run_id: str, result: Settle, digest: str) -> None:
    """Write what the devices say of the model that the round began with, and of training."""
    found = result.details
    told: dict[str, float] = {}
    if found.score_n:
        told = {DEVICE_SCORE.key: found.score, DEVICE_SAMPLES: float(found.score_n)}
    if math.isfinite(found.train_loss):
        told[TRAIN_LOSS.key] = found.train_loss
    sql.executemany(
        "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?)",
        [(run_id, result.round, digest, name, value) for name, value in told.items()],
    )


def insert_outcomes(
    sql: sqlite3.Connection, run_id: str, result: Settle, paid: frozenset[int]
) -> None:
    """Write how each client and each edge ended the round."""
    f, d = result.feedback, result.details
    clients = f.view.pair_client[f.pairs]
    columns = zip(
        clients.tolist(),
        f.view.pair_edge[f.pairs].tolist(),
        d.status,
        f.X.tolist(),
        f.used.tolist(),
        f.view.client_price[clients].tolist(),
        f.censored.tolist(),
        f.tau_s.tolist(),
        f.dt_s.tolist(),
        f.lc_s.tolist(),
        f.ut_s.tolist(),
        f.num_samples.tolist(),
        f.arrivals.tolist(),
        d.weight.tolist(),
        d.norm.tolist(),
        d.loss.tolist(),
        d.reason,
        strict=True,
    )
    sql.executemany(
        f"INSERT INTO outcomes VALUES (?, ?, {','.join('?' * 17)})",  # noqa: S608 - constants
        [
            (run_id, result.round, *row[:5], row[5] if row[0] in paid else 0, *row[6:])
            for row in columns
        ],
    )
    sql.executemany(
        "INSERT INTO edge_results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run_id,
                result.round,
                e.index,
                e.ordered,
                e.in_time,
                e.used,
                e.spent_micro,
                e.failed,
                e.model,
                e.weight,
            )
            for e in result.edges
        ],
    )
