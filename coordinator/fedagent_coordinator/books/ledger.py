"""The ledger: double entry in integer micro-credits, one hash chain, append-only.

Each entry moves money of a run between four places (`balances`), where the database lets none
fall below zero and holds granted = free + reserved + settled::

    grant      -> free                 the run's long-term budget
    reserve    free -> reserved        a round ordered clients, and may have rented an edge
    settle     reserved -> settled     what was paid of it; the rest goes back to free
    void       reserved -> free        the round did not count

Whom a round pays is in its rows: an order without `void`, a rent that was paid. Every entry binds
all rows of its round by one digest, those of the run itself as round 0, with the ids of agents and
edges in the place of their indices: the newest entry of a round holds. Left out are what people
call devices, policies' snapshots, and sums.
"""

# ruff: noqa: S608 - every query is made of constants

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import msgspec

from fedagent_coordinator.errors import LedgerError
from fedagent_protocol.messages import MAX_MICRO, LedgerHead
from fedagent_protocol.signed import verify

GENESIS = bytes(32)
"""What the first entry of the ledger names as its predecessor."""
_PURPOSE = b"fedagent/ledger-head/1\0"

_CLIENT = "JOIN clients c ON c.run_id = a.run_id AND c.idx = a.client"
_EDGE = "JOIN edges e ON e.run_id = a.run_id AND e.idx = a.edge"
_AT = "WHERE a.run_id = ?1 AND a.round = ?2"
BOUND = (
    "SELECT * FROM runs WHERE run_id = ?1 AND ?2 = 0",
    "SELECT * FROM main.closed WHERE run_id = ?1 AND ?2 = 0 ORDER BY first",
    f"""SELECT round, state, policy, saw, a.rent_micro, rent_paid_micro, psi, reason, timing,
    opened_ms, closed_ms, e.edge_id FROM rounds a
    LEFT JOIN edges e ON e.run_id = a.run_id AND e.idx = a.rented_edge {_AT}""",
    f"SELECT a.*, c.agent_id, e.edge_id FROM orders a {_CLIENT} {_EDGE} {_AT} ORDER BY client",
    f"SELECT a.*, e.edge_id FROM edge_results a {_EDGE} {_AT} ORDER BY edge",
    f"SELECT * FROM models a {_AT}",
    f"SELECT * FROM metrics a {_AT} ORDER BY metric",
    f"SELECT * FROM evaluations a {_AT}",
    f"SELECT a.*, c.agent_id, e.edge_id FROM answers a {_CLIENT} {_EDGE} {_AT} ORDER BY client",
)
"""The rows that an entry binds, of a run and a round."""
UNBINDING = ("grant", "note", "accept")
"""Entries that bind no rows."""
MOVES = ("grant", "reserve", "settle", "void")

_MOVED = "SELECT seq, n.run_id, n.round, kind"
_OF_RUN = "(:run_id IS NULL OR n.run_id = :run_id)"
_OF_ORDER = f"""FROM entries n JOIN orders a ON a.run_id = n.run_id AND a.round = n.round
    {_CLIENT} WHERE {_OF_RUN}"""
_OF_RENT = f"""FROM entries n JOIN rounds a ON a.run_id = n.run_id AND a.round = n.round
    JOIN edges e ON e.run_id = a.run_id AND e.idx = a.rented_edge WHERE {_OF_RUN}"""
_END = "SELECT seq, n.run_id, n.round, CASE WHEN {0} THEN 'settle' ELSE 'void' END"
_TO = "CASE WHEN {0} THEN {1} ELSE 'treasury' END"
_PAID, _RENTED = "a.void = 0", "a.rent_paid_micro = a.rent_micro AND a.state = 'done'"
_TRANSFERS = f"""
{_MOVED}, 'grantor' AS source, 'treasury' AS target, NULL AS edge, NULL AS client,
    amount_micro, '' AS payee, at_ms, hash FROM entries n WHERE {_OF_RUN} AND kind = 'grant'
UNION ALL {_MOVED}, 'operator', note, NULL, NULL, 0, '', at_ms, hash
    FROM entries n WHERE {_OF_RUN} AND kind IN ('note', 'accept')
UNION ALL {_MOVED}, 'treasury', 'edge/' || edge, edge, client, price_micro, agent_id, at_ms, hash
    {_OF_ORDER} AND kind = 'reserve'
UNION ALL {_MOVED}, 'treasury', 'edge/' || rented_edge, rented_edge, NULL, a.rent_micro, edge_id,
    at_ms, hash {_OF_RENT} AND kind = 'reserve'
UNION ALL {_END.format(_PAID)}, 'edge/' || edge, {_TO.format(_PAID, "'client/' || client")},
    edge, client, price_micro, agent_id, n.at_ms, hash {_OF_ORDER} AND kind IN ('settle', 'void')
UNION ALL {_END.format(_RENTED)}, 'edge/' || rented_edge,
    {_TO.format(_RENTED, "'rent/' || rented_edge")}, rented_edge, NULL, a.rent_micro, edge_id,
    n.at_ms, hash {_OF_RENT} AND kind IN ('settle', 'void')
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the ledger; `hash` covers every other field and the hash before it."""

    seq: int
    run_id: str | None
    round: int | None
    kind: str
    amount_micro: int
    digest: bytes
    note: str
    at_ms: int
    hash: bytes


COLUMNS = tuple(one.name for one in fields(Entry))


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


def digest_of(sql: sqlite3.Connection, run_id: str, round_: int) -> bytes:
    """Return the digest of all rows of a round; round 0 is the run itself."""
    cursor, whole = sql.cursor(), hashlib.sha256()
    cursor.row_factory = None  # tuples
    for query in BOUND:
        rows = cursor.execute(query, (run_id, round_)).fetchall()
        whole.update(hashlib.sha256(msgspec.msgpack.encode(rows)).digest())
    return whole.digest()


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


def moved(kind: str, amount: int, reserved: int = 0) -> tuple[int, int, int, int, int]:
    """Return what an entry adds to each column of `Balance`."""
    match kind:
        case "grant":
            return amount, amount, 0, 0, 0
        case "reserve":
            return 0, -amount, amount, 0, 0
        case "settle":
            return 0, reserved - amount, -reserved, amount, reserved - amount
        case _:
            return 0, reserved, -reserved, 0, reserved


def head_bytes(seq: int, hash_: bytes) -> bytes:
    """Return what a coordinator signs of a head: its newest entry, which edges are witnesses of."""
    return _PURPOSE + seq.to_bytes(8) + hash_


def is_genuine(head: LedgerHead, public: bytes) -> bool:
    """Return whether the coordinator with this key has signed a head."""
    return verify(public, head.signature, head_bytes(head.seq, head.hash))
