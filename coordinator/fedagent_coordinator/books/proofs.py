"""What agents signed of the work that they were paid for: kept with each payment, and shown."""

import hashlib
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from fedagent_coordinator.books.ledger import COLUMNS, Entry
from fedagent_coordinator.books.rounds import Reservation
from fedagent_coordinator.core.effects import Proof, Settle
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.signed import WorkClaim, identity_of, verify

_ENTRY = ", ".join(f"n.{name}" for name in COLUMNS)


@dataclass(frozen=True, slots=True)
class PaidWork:
    """One payment with its proof.

    Attributes:
        entry: The settle of the ledger.
        work: What the agent said that it did; None where that cannot be read.
        problem: Why the proof does not hold; empty if it does.
    """

    entry: Entry
    proof: Proof
    work: WorkClaim | None
    problem: str

    def record(self) -> dict[str, object]:
        """Return plain values; bytes are hex. With them anybody can check the signature."""
        proof = {name: value.hex() for name, value in structs.asdict(self.proof).items()}
        return {
            "genuine": not self.problem,
            "problem": self.problem,
            "work": {} if self.work is None else self.work._asdict(),
            **proof,
            "entry": self.entry.record(),
        }


def insert_proofs(
    sql: sqlite3.Connection,
    run_id: str,
    result: Settle,
    reservations: Sequence[Reservation],
    paid: Collection[int | None],
) -> list[Reservation]:
    """Keep what agents signed of the work that is paid; return reservations with its digest."""
    kept = {client: proof for client, proof in result.proofs.items() if client in paid}
    sql.executemany(
        "INSERT INTO proofs (run_id, round, client, claim, public, signature) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [(run_id, result.round, client, *structs.astuple(one)) for client, one in kept.items()],
    )
    digests: dict[int | None, bytes] = {client: digest_of(one) for client, one in kept.items()}
    return [replace(r, proof=digests.get(r.client, b"")) for r in reservations]


def digest_of(proof: Proof) -> bytes:
    """Return what the entry of a payment has of its proof."""
    return hashlib.sha256(b"".join(structs.astuple(proof))).digest()


def paid_work(sql: sqlite3.Connection, run_id: str, round_: int, agent: str) -> PaidWork | None:
    """Return what an agent was paid for in a round; None if nothing, or nothing is known of it."""
    row = sql.execute(
        f"SELECT {_ENTRY}, p.claim, p.public, p.signature FROM entries n "  # noqa: S608 - constants
        "JOIN proofs p USING (run_id, round, client) WHERE n.run_id = ? AND n.round = ? "
        "AND n.kind = 'settle' AND n.payee = ?",
        (run_id, round_, agent),
    ).fetchone()
    if row is None:
        return None
    entry, proof = Entry(*tuple(row)[: len(COLUMNS)]), Proof(*tuple(row)[len(COLUMNS) :])
    try:
        work = WorkClaim.read(proof.claim)
    except MalformedError as error:
        return PaidWork(entry, proof, None, str(error))
    return PaidWork(entry, proof, work, _problem(entry, proof, work))


def recent_work(sql: sqlite3.Connection, run_id: str, since: int) -> frozenset[tuple[str, int]]:
    """Return agent and round of all work that was paid in the rounds from `since` on."""
    claims = sql.execute(
        "SELECT claim FROM proofs WHERE run_id = ? AND round >= ?", (run_id, since)
    )
    works = [WorkClaim.read(claim) for (claim,) in claims]
    return frozenset((work.agent, work.made_in or work.round) for work in works)


def _problem(entry: Entry, proof: Proof, work: WorkClaim) -> str:
    if entry.expected_hash() != entry.hash or entry.facts != digest_of(proof):
        return "the entry of the payment has another proof"
    if identity_of(proof.public) != entry.payee:
        return "the key is not that of who was paid"
    if not verify(proof.public, proof.signature, proof.claim):
        return "the signature does not hold"
    if (work.run, work.round, work.agent) != (entry.run_id, entry.round, entry.payee):
        return "it is of other work"
    return ""
