"""What the books say beside money, bound into the ledger's hash chain.

Of each subject (a run, a plan, how a round ended, a model, what was measured of it) an entry of
kind ``fact`` has the digest of its rows, with the ids of agents and edges in the place of their
indices. What the rows say later is compared with the newest fact. Left out are what people call
devices, policies' snapshots (they have their own digest), and balances, which are sums.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

from fedagent_coordinator.books.ledger import LedgerWriter, Transfer

FACT = "fact"
RUN, PLAN, OUTCOME = "run", "plan", "outcome"
MODEL, METRICS, EVALUATION, FORGOTTEN = "model", "metrics", "evaluation", "forgotten"
PRUNED, CLOSED = "pruned", "closed"

_CLIENT = "JOIN clients c ON c.run_id = a.run_id AND c.idx = a.client"
_EDGE = "JOIN edges e ON e.run_id = a.run_id AND e.idx = a.edge"
_RENTED = "LEFT JOIN edges e ON e.run_id = a.run_id AND e.idx = a.rented_edge"
_LEFT = "pruned a JOIN {} r ON r.run_id = a.run_id AND r.round BETWEEN a.first AND a.round"
_KEPT = _LEFT.replace("pruned", "closed")
_CLIENT_LEFT = "JOIN clients c ON c.run_id = r.run_id AND c.idx = r.client"
_EDGE_LEFT = "JOIN edges e ON e.run_id = r.run_id AND e.idx = r.edge"


def _query(columns: str, source: str, order: str = "", *, of_round: bool = True) -> str:
    """Return a query of which the place for what is wanted, and nothing else, is open."""
    round_, by = ("a.round", "a.run_id, a.round") if of_round else ("0", "a.run_id")
    by = f"{by}, {order}" if order else by
    return f"SELECT a.run_id, {round_}, {columns} FROM {source} WHERE {{}} ORDER BY {by}"  # noqa: S608 - constants


# Every column by its name: a later release may add others.
_PARTS: Mapping[str, tuple[str, ...]] = {
    RUN: (
        _query(
            "recipe_digest, recipe, seed, unlimited, origin, begun_ms, ended_ms, end_reason",
            "runs a",
            of_round=False,
        ),
        _query("recipe, agents, samples", "standardized a", of_round=False),
        _query(
            "seq, after, count, ended_ms, end_reason, at_ms", "extensions a", "seq", of_round=False
        ),
    ),
    PLAN: (
        _query(
            "policy, view, selection, controls, rent_micro, opened_ms, e.edge_id",
            f"rounds a {_RENTED}",
        ),
        _query("edge, budget_micro, reserved_micro, e.edge_id", f"edge_budgets a {_EDGE}", "edge"),
        _query(
            "client, edge, price_micro, context_seq, place, c.agent_id, e.edge_id",
            f"reservations a {_CLIENT} {_EDGE}",
            "client",
        ),
    ),
    OUTCOME: (
        _query(
            "state, psi, reason, timing, closed_ms",
            "(SELECT * FROM rounds WHERE state <> 'open') a",
        ),
        _query(
            "client, status, reason, in_time, used, void, censored, tau_s, dt_s, lc_s, ut_s, "
            "num_samples, arrivals, steps, iterations, train_s, seconds_per_iteration, loss_rms, "
            "weight, norm, loss, c.agent_id",
            f"outcomes a {_CLIENT}",
            "client",
        ),
        _query(
            "edge, failed, model, weight, local_steps, e.edge_id", f"edge_results a {_EDGE}", "edge"
        ),
    ),
    MODEL: (_query("digest, size_bytes, at_ms, state", "models a"),),
    METRICS: (_query("digest, metric, value", "metrics a", "metric"),),
    EVALUATION: (
        _query(
            "slot, mode, digest, metric, asked, answered, mean, reasons, seconds", "evaluations a"
        ),
        _query(
            "client, edge, score, samples, epsilon, c.agent_id, e.edge_id",
            f"opinions a {_CLIENT} {_EDGE}",
            "client",
        ),
        _query("client, edge, c.agent_id, e.edge_id", f"volunteers a {_CLIENT} {_EDGE}", "client"),
    ),
    FORGOTTEN: (_query("e.edge_id", f"forgotten a {_EDGE}", "e.edge_id"),),
    PRUNED: (
        _query("first, by, at_ms", "pruned a"),
        _query(
            "r.round, policy, view, selection, controls, rent_micro, opened_ms, e.edge_id",
            f"{_LEFT.format('rounds')} {_RENTED.replace('a.', 'r.')}",
            "r.round",
        ),
        _query(
            "r.round, edge, budget_micro, reserved_micro, e.edge_id",
            f"{_LEFT.format('edge_budgets')} {_EDGE_LEFT}",
            "r.round, edge",
        ),
        _query(
            "r.round, client, edge, price_micro, context_seq, place, c.agent_id, e.edge_id",
            f"{_LEFT.format('reservations')} {_CLIENT_LEFT} {_EDGE_LEFT}",
            "r.round, client",
        ),
    ),
    CLOSED: (
        _query("first, digest, size_bytes, summary, by, at_ms", "closed a"),
        _query(
            "r.round, r.digest, r.size_bytes, r.at_ms, state", _KEPT.format("models"), "r.round"
        ),
        _query("r.round, r.digest, metric, value", _KEPT.format("metrics"), "r.round, metric"),
        _query(
            "r.round, slot, mode, r.digest, metric, asked, answered, mean, reasons, seconds",
            _KEPT.format("evaluations"),
            "r.round",
        ),
        _query(
            "r.round, client, edge, score, samples, epsilon, c.agent_id, e.edge_id",
            f"{_KEPT.format('opinions')} {_CLIENT_LEFT} {_EDGE_LEFT}",
            "r.round, client",
        ),
        _query(
            "r.round, client, edge, c.agent_id, e.edge_id",
            f"{_KEPT.format('volunteers')} {_CLIENT_LEFT} {_EDGE_LEFT}",
            "r.round, client",
        ),
    ),
}
"""Queries of each subject: run and round come first, then what is bound."""
SUBJECTS = tuple(_PARTS)
OF_CLOSED = (OUTCOME, MODEL, METRICS, EVALUATION, PRUNED)
"""What facts in closed books say can be compared with the rows in them, and those that stay."""
_OPEN = """NOT EXISTS (SELECT 1 FROM closed k WHERE k.run_id = a.run_id
    AND k.round >= a.round AND k.first <= a.round)"""
_WHERE = {MODEL: _OPEN, METRICS: _OPEN, EVALUATION: _OPEN}
"""What stays of closed rounds is bound with the row that closes them."""
_CHANGED = {
    RUN: "its recipe, its scaling or its end has changed",
    PLAN: "what was decided has changed",
    OUTCOME: "its outcomes have changed",
    MODEL: "its model has changed",
    METRICS: "what was measured has changed",
    EVALUATION: "the evaluation of its model has changed",
    FORGOTTEN: "what is forgotten has changed",
    PRUNED: "what is left of pruned rounds has changed",
    CLOSED: "its closed books have changed, or what was measured in them",
}
_NOTHING = hashlib.sha256(msgspec.msgpack.encode([])).digest()

Newest = dict[tuple[str, str, int], bytes]
"""The digest of the newest fact by subject, run and round."""


def bind(
    ledger: LedgerWriter,
    sql: sqlite3.Connection,
    subject: str,
    run_id: str,
    round_: int = 0,
    *,
    at_ms: int,
) -> None:
    """Append a fact on a subject of a run (and a round), inside the store's transaction."""
    fact = Transfer(
        kind=FACT,
        source=subject,
        target="",
        amount_micro=0,
        key=f"{run_id}/{round_}/{subject}/{ledger.seq + 1}",
        round=round_,
        facts=digest_of(sql, subject, run_id, round_),
    )
    ledger.append(run_id, [fact], at_ms)


def digest_of(sql: sqlite3.Connection, subject: str, run_id: str, round_: int) -> bytes:
    """Return the digest of what the rows say on a subject."""
    one = "a.run_id = ?" if subject == RUN else "a.run_id = ? AND a.round = ?"
    key = (run_id,) if subject == RUN else (run_id, round_)
    found = (_plain(sql, query.format(one), *key) for query in _PARTS[subject])
    return _joined([_digest([row[2:] for row in rows]) for rows in found])


def check(
    sql: sqlite3.Connection,
    newest: Newest,
    problem: Callable[[str], None],
    *,
    subjects: Iterable[str] = SUBJECTS,
) -> None:
    """Compare the newest fact on every subject with its rows, and find rows without one."""
    for subject in subjects:
        queries, where = _PARTS[subject], _WHERE.get(subject, "1")
        parts: dict[tuple[str, int], list[bytes]] = {}
        for place, query in enumerate(queries):
            for key, digest in _grouped(sql, query.format(where)):
                parts.setdefault(key, [_NOTHING] * len(queries))[place] = digest
        found = {key: _joined(digests) for key, digests in parts.items()}
        said = {key[1:]: digest for key, digest in newest.items() if key[0] == subject}
        gone = _pruned(sql) if subject == PLAN else set()
        for key in sorted({*found, *said} - gone):
            if found.get(key, _joined([_NOTHING] * len(queries))) != said.get(key):
                run_id, round_ = key
                where = f"run {run_id[:8]}" if subject == RUN else f"round {round_}"
                problem(f"{where}: {_CHANGED[subject]}")


def _pruned(sql: sqlite3.Connection) -> set[tuple[str, int]]:
    """Return the rounds whose plans are bound by the piece that they went with."""
    return set(_plain(sql, f"SELECT r.run_id, r.round FROM {_LEFT.format('rounds')}"))  # noqa: S608 - constants


def _grouped(sql: sqlite3.Connection, query: str) -> Iterator[tuple[tuple[str, int], bytes]]:
    for key, rows in groupby(_plain(sql, query), key=lambda row: (row[0], row[1])):
        yield key, _digest([row[2:] for row in rows])


def _plain(sql: sqlite3.Connection, query: str, *values: object) -> sqlite3.Cursor:
    cursor = sql.cursor()
    cursor.row_factory = None  # tuples
    return cursor.execute(query, values)


def _digest(rows: list[tuple[object, ...]]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()


def _joined(digests: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()
