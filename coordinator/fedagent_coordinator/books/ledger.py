"""The ledger: double entry in integer micro-credits, one hash chain, append-only.

Each entry moves money of a run between four places and says what is in each after it; the database
lets none fall below zero and holds granted = free + reserved + settled::

    grant      -> free                 the run's long-term budget
    reserve    free -> reserved        a round ordered clients, and may have rented an edge
    settle     reserved -> settled     what was paid of it; the rest goes back to free
    void       reserved -> free        the round did not count

Whom a round pays is in its rows: an order not `unpaid`, a rent that was paid. Every entry binds the
rows that were written with it by one digest, with ids in the place of indices; of two entries that
bind the same rows the newer one holds. Left out are policies' snapshots, and sums.
"""

# ruff: noqa: S608 - every query is made of constants

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import msgspec

from fedagent_coordinator.errors import LedgerError
from fedagent_protocol.messages import MAX_MICRO

GENESIS = bytes(32)
"""What the first entry of the ledger names as its predecessor."""

_CLIENT = "JOIN clients c ON c.run_id = a.run_id AND c.idx = a.client"
_EDGE = "JOIN edges e ON e.run_id = a.run_id AND e.idx = a.edge"
_AT = "WHERE a.run_id = ?1 AND a.round = ?2"
_SCORES = "('device_score', 'device_samples', 'train_loss')"
"""Metrics that a round is settled with; the others are measured later."""
_ROUND = "round"
BOUND = {
    "run": ("SELECT * FROM runs WHERE run_id = ?1 AND ?2 = 0",),
    "close": ("SELECT * FROM main.closed WHERE run_id = ?1 AND ?2 = 0 ORDER BY first",),
    "names": (
        "SELECT idx, agent_id, label FROM clients WHERE run_id = ?1 AND ?2 = 0 ORDER BY idx",
        "SELECT idx, edge_id, label FROM edges WHERE run_id = ?1 AND ?2 = 0 ORDER BY idx",
    ),
    _ROUND: (
        f"""SELECT round, state, policy, saw, a.ordered, reserved_micro, a.rent_micro,
        rent_paid_micro, psi, reason, timing, opened_ms, closed_ms, e.edge_id FROM rounds a
        LEFT JOIN edges e ON e.run_id = a.run_id AND e.idx = a.rented_edge {_AT}""",
        f"SELECT a.*, c.agent_id, e.edge_id FROM orders a {_CLIENT} {_EDGE} {_AT} ORDER BY client",
        f"SELECT a.*, e.edge_id FROM edge_results a {_EDGE} {_AT} ORDER BY edge",
        f"SELECT * FROM metrics a {_AT} AND metric IN {_SCORES} ORDER BY metric",
    ),
    "model": (f"SELECT * FROM models a {_AT}",),
    "metrics": (f"SELECT * FROM metrics a {_AT} AND metric NOT IN {_SCORES} ORDER BY metric",),
    "evaluation": (
        f"SELECT * FROM evaluations a {_AT}",
        f"SELECT a.*, c.agent_id, e.edge_id FROM answers a {_CLIENT} {_EDGE} {_AT} ORDER BY client",
    ),
}
"""The rows that an entry binds, of a run (as round 0) or a round; those of none bind nothing."""
WRITTEN = f"""SELECT 'run', run_id, 0 FROM runs UNION SELECT 'close', run_id, 0 FROM main.closed
    UNION SELECT 'names', run_id, 0 FROM clients UNION SELECT 'names', run_id, 0 FROM edges
    UNION SELECT 'round', run_id, round FROM rounds UNION SELECT 'round', run_id, round FROM orders
    UNION SELECT 'round', run_id, round FROM edge_results
    UNION SELECT 'model', run_id, round FROM models
    UNION SELECT iif(metric IN {_SCORES}, 'round', 'metrics'), run_id, round FROM metrics
    UNION SELECT 'evaluation', run_id, round FROM evaluations
    UNION SELECT 'evaluation', run_id, round FROM answers"""
"""Where there are rows that an entry must bind, as its `Bound`."""
Bound = tuple[str, str, int]
"""What an entry binds rows of: a key of `BOUND`, a run, and a round or 0."""
_BALANCE = "granted_micro, free_micro, reserved_micro, settled_micro, voided_micro"

_MOVED = "SELECT seq, n.run_id, n.round, kind"
_OF_RUN = "(:run_id IS NULL OR n.run_id = :run_id)"
_OF_ORDER = f"""FROM entries n JOIN orders a ON a.run_id = n.run_id AND a.round = n.round
    {_CLIENT} WHERE {_OF_RUN}"""
_OF_RENT = f"""FROM entries n JOIN rounds a ON a.run_id = n.run_id AND a.round = n.round
    JOIN edges e ON e.run_id = a.run_id AND e.idx = a.rented_edge WHERE {_OF_RUN}"""
_END = "SELECT seq, n.run_id, n.round, CASE WHEN {0} THEN 'settle' ELSE 'void' END"
_TO = "CASE WHEN {0} THEN {1} ELSE 'treasury' END"
_PAID, _RENTED = "a.unpaid = 0", "a.rent_paid_micro = a.rent_micro AND a.state = 'done'"
_TRANSFERS = f"""
{_MOVED}, 'grantor' AS source, 'treasury' AS target, NULL AS edge, NULL AS client,
    amount_micro, '' AS payee, at_ms, hash FROM entries n WHERE {_OF_RUN} AND kind = 'grant'
UNION ALL {_MOVED}, 'operator', note, NULL, NULL, 0, '', at_ms, hash
    FROM entries n WHERE {_OF_RUN} AND kind IN ('note', 'accept')
UNION ALL {_MOVED}, 'treasury', 'edge/' || edge, edge, client, price_micro, agent_id, at_ms, hash
    {_OF_ORDER} AND kind = 'reserve'
UNION ALL {_MOVED}, 'treasury', 'orders', NULL, NULL, amount_micro - a.rent_micro, '', at_ms, hash
    FROM entries n JOIN rounds a ON a.run_id = n.run_id AND a.round = n.round
    WHERE {_OF_RUN} AND kind = 'reserve' AND a.state = 'open' AND amount_micro > a.rent_micro
UNION ALL {_MOVED}, 'treasury', 'edge/' || rented_edge, rented_edge, NULL, a.rent_micro, edge_id,
    at_ms, hash {_OF_RENT} AND kind = 'reserve'
UNION ALL {_END.format(_PAID)}, 'edge/' || edge, {_TO.format(_PAID, "'client/' || client")},
    edge, client, price_micro, agent_id, n.at_ms, hash {_OF_ORDER} AND kind IN ('settle', 'void')
UNION ALL {_END.format(_RENTED)}, 'edge/' || rented_edge,
    {_TO.format(_RENTED, "'rent/' || rented_edge")}, rented_edge, NULL, a.rent_micro, edge_id,
    n.at_ms, hash {_OF_RENT} AND kind IN ('settle', 'void')
"""


class Entry(NamedTuple):
    """One row of the ledger; `hash` covers every other field and the hash before it."""

    seq: int
    run_id: str | None
    round: int | None
    kind: str
    amount_micro: int
    digest: bytes
    note: str
    at_ms: int
    granted_micro: int
    free_micro: int
    reserved_micro: int
    settled_micro: int
    voided_micro: int
    hash: bytes

    @property
    def balance(self) -> tuple[int, ...]:
        """Where the money of the run is after it."""
        return self[8:13]


COLUMNS = Entry._fields


@dataclass(frozen=True, slots=True)
class Transfer:
    """What an entry moved for one client, or for a rent; `payee` is the id of who it is of."""

    seq: int
    run_id: str | None
    round: int | None
    kind: str
    source: str
    target: str
    edge: int | None
    client: int | None
    amount_micro: int
    payee: str
    at_ms: int
    hash: bytes

    def record(self) -> dict[str, object]:
        """Return plain values; bytes are hex."""
        return {**asdict(self), "hash": self.hash.hex()}


def chain_hash(previous: bytes, values: Sequence[object]) -> bytes:
    """Return SHA-256 over the previous hash and the canonical (MessagePack) row."""
    return hashlib.sha256(previous + msgspec.msgpack.encode(values)).digest()


def bound_by(kind: str, run_id: str | None, round_: int | None) -> Bound:
    """Return what an entry of a kind binds; of some kinds nothing."""
    what = _ROUND if kind in ("reserve", "settle", "void") else kind
    return what, run_id or "", round_ or 0


def digest_of(sql: sqlite3.Connection, bound: Bound) -> bytes:
    """Return the digest of rows as they are now; empty where nothing is bound."""
    what, *place = bound
    if what not in BOUND:
        return b""
    cursor = sql.cursor()
    cursor.row_factory = None  # tuples
    rows = [cursor.execute(query, place).fetchall() for query in BOUND[what]]
    return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()


def entries_of(sql: sqlite3.Connection, since: int = 0) -> Iterator[Entry]:
    """Yield the entries after one, oldest first."""
    rows = sql.execute(
        f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq > ? ORDER BY seq",
        (since,),
    )
    return (Entry(*row) for row in rows)


def transfers_of(
    sql: sqlite3.Connection, run_id: str | None = None, *, newest: int | None = None
) -> list[Transfer]:
    """Return what entries moved, oldest first, or the `newest` so many, newest first.

    Notes of the operator are among them; those of closed rounds are in the archive.
    """
    order = "ASC" if newest is None else "DESC"
    query = f"SELECT * FROM ({_TRANSFERS}) ORDER BY seq {order} LIMIT :limit"
    limit = -1 if newest is None else newest
    return [Transfer(*row) for row in sql.execute(query, {"run_id": run_id, "limit": limit})]


def hash_at(sql: sqlite3.Connection, seq: int) -> bytes | None:
    """Return the hash of an entry; None if there is none."""
    if not seq:
        return GENESIS
    row = sql.execute("SELECT hash FROM entries WHERE seq = ?", (seq,)).fetchone()
    return None if row is None else bytes(row[0])


def checked_micro(what: str, amount: object) -> int:
    """Return an amount, or refuse it: whole micro-credits in 0..MAX_MICRO only."""
    if type(amount) is not int or not 0 <= amount <= MAX_MICRO:
        raise LedgerError(f"{what} is {amount!r}, not a whole number of micro-credits in range")
    return amount


def balance_of(sql: sqlite3.Connection, run_id: str) -> tuple[int, ...]:
    """Return where the money of a run is, in the order of `Balance`: as its newest entry has it."""
    row = sql.execute(
        f"SELECT {_BALANCE} FROM entries WHERE run_id = ? ORDER BY seq DESC LIMIT 1", (run_id,)
    ).fetchone()
    return (0,) * 5 if row is None else tuple(row)


def moved(kind: str, amount: int, reserved: int = 0) -> tuple[int, int, int, int, int]:
    """Return what an entry adds to each column of `Balance`."""
    match kind:
        case "grant":
            return amount, amount, 0, 0, 0
        case "reserve":
            return 0, -amount, amount, 0, 0
        case "settle":
            return 0, reserved - amount, -reserved, amount, reserved - amount
        case "void":
            return 0, reserved, -reserved, 0, reserved
        case _:
            return 0, 0, 0, 0, 0
