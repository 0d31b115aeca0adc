"""The ledger: double entry in integer micro-credits, hash-chained, append-only.

Every row moves an amount from one account to another::

    grantor -> treasury              grant     the run's long-term budget
    treasury -> edge/E/reserved      reserve   a client was chosen at edge E
    edge/E/reserved -> client/C      settle    its valid update came before E closed the round
    edge/E/reserved -> treasury      void      it did not, or E's report never counted
    treasury -> edge/E/reserved      reserve   edge E was rented for a round (no client)
    edge/E/reserved -> rent/E        settle    it reported a device's signed work
    edge/E/reserved -> treasury      void      it did not

Every way to be too late is in docs/coordinator.md. A reservation ends in exactly one
settle or void: both carry the same idempotency key. What is said beside money is bound by
entries of kind ``fact`` (`facts.py`). `accounts` keeps the balances, which
the database never lets fall below zero.
Writes happen inside the store's transactions only (`store.py`).
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter

import msgspec

from fedagent_coordinator.errors import LedgerError
from fedagent_coordinator.policies.base import MAX_MICRO

GENESIS = bytes(32)
"""What the first entry of the ledger names as its predecessor."""
TREASURY = "treasury"
GRANTOR = "grantor"

RENT_PAID = """(SELECT COALESCE(SUM(n.amount_micro), 0) FROM entries n WHERE n.run_id = r.run_id
    AND n.round = r.round AND n.kind = 'settle' AND n.client IS NULL)"""
"""What the edge that a round `r` rented was paid; its entry is the one without a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One movement of money before it is an entry."""

    kind: str
    source: str
    target: str
    amount_micro: int
    key: str
    round: int | None = None
    edge: int | None = None
    client: int | None = None
    payee: str = ""
    facts: bytes = b""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the ledger; `hash` covers every other field and `prev_hash`."""

    seq: int
    run_id: str | None
    round: int | None
    kind: str
    source: str
    target: str
    edge: int | None
    client: int | None
    amount_micro: int
    key: str
    at_ms: int
    payee: str
    facts: bytes
    prev_hash: bytes
    hash: bytes

    def record(self) -> dict[str, object]:
        """Return plain values; bytes are hex."""
        return {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in asdict(self).items()
        }

    def expected_hash(self) -> bytes:
        """Return the hash that this row must have."""
        return chain_hash(self.prev_hash, _hashed(self))


COLUMNS = tuple(field.name for field in fields(Entry))
_hashed = attrgetter(*COLUMNS[:-2])
_INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - constants


def chain_hash(previous: bytes, values: Sequence[object]) -> bytes:
    """Return SHA-256 over the previous hash and the canonical (MessagePack) row."""
    return hashlib.sha256(previous + msgspec.msgpack.encode(values)).digest()


def reserved_at(edge: int | None) -> str:
    """Return the account of what is reserved at an edge."""
    return f"edge/{edge}/reserved"


def paid_to(edge: int | None, client: int | None) -> str:
    """Return the account of what a client was paid, or an edge for aggregating."""
    return f"rent/{edge}" if client is None else f"client/{client}"


ROUTES: Mapping[str, Callable[[int | None, int | None], tuple[str, str]]] = {
    "grant": lambda _edge, _client: (GRANTOR, TREASURY),
    "reserve": lambda edge, _client: (TREASURY, reserved_at(edge)),
    "settle": lambda edge, client: (reserved_at(edge), paid_to(edge, client)),
    "void": lambda edge, _client: (reserved_at(edge), TREASURY),
}
"""From which account to which each kind of entry moves money, by edge and client."""


def checked_micro(what: str, amount: object) -> int:
    """Return an amount, or refuse it: whole micro-credits in 0..MAX_MICRO only."""
    if type(amount) is not int or not 0 <= amount <= MAX_MICRO:
        raise LedgerError(f"{what} is {amount!r}, not a whole number of micro-credits in range")
    return amount


class LedgerWriter:
    """Appends entries inside a transaction that the store has begun."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.seq = 0
        self.hash = GENESIS
        self.reload()

    def reload(self) -> None:
        """Read the head of the chain, after opening and after a rollback."""
        row = self._db.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        self.seq, self.hash = row or (0, GENESIS)

    def append(self, run_id: str | None, transfers: Iterable[Transfer], at_ms: int) -> None:
        """Append entries and move the balances.

        Raises:
            sqlite3.IntegrityError: A key was used before, or a balance would fall
                below zero.
        """
        rows: list[tuple[object, ...]] = []
        change: Counter[str] = Counter()
        for move in transfers:
            amount = checked_micro(move.kind, move.amount_micro)
            self.seq += 1
            values = (
                *(self.seq, run_id, move.round, move.kind, move.source, move.target),
                *(move.edge, move.client, amount, move.key, at_ms, move.payee, move.facts),
            )
            previous, self.hash = self.hash, chain_hash(self.hash, values)
            rows.append((*values, previous, self.hash))
            change[move.source] -= amount
            change[move.target] += amount
        self._db.executemany(_INSERT, rows)
        if run_id is not None:
            self._move_balances(run_id, change)

    def grant(
        self, run_id: str, amount_micro: int, key: str, at_ms: int, *, round_: int | None = None
    ) -> None:
        """Add to the treasury of a run, for one of its rounds or for all."""
        move = Transfer(
            kind="grant",
            source=GRANTOR,
            target=TREASURY,
            amount_micro=amount_micro,
            key=f"{run_id}/grant/{key}",
            round=round_,
        )
        self.append(run_id, [move], at_ms)

    def free_micro(self, run_id: str) -> int:
        """Return what is neither reserved nor paid."""
        row = self._db.execute(
            "SELECT balance_micro FROM accounts WHERE run_id = ? AND account = ?",
            (run_id, TREASURY),
        ).fetchone()
        return int(row["balance_micro"]) if row else 0

    def _move_balances(self, run_id: str, change: Counter[str]) -> None:
        change.pop(GRANTOR, None)
        self._db.executemany(
            "INSERT OR IGNORE INTO accounts VALUES (?, ?, 0)",
            [(run_id, account) for account in change],
        )
        self._db.executemany(
            "UPDATE accounts SET balance_micro = balance_micro + ? "
            "WHERE run_id = ? AND account = ?",
            [(amount, run_id, account) for account, amount in change.items() if amount],
        )
