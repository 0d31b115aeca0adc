"""What devices and coordinators sign, and whether they did: one form for every statement.

Edges hand statements on and can make none: neither work that a device did not do, nor terms or an
opinion that are not its own, nor an order or a call that the coordinator did not give. What is
signed begins with the kind of the statement, so that no signature serves for two. A *claim* is a
raw Ed25519 key and its signature. Pure.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import DecodeError, Struct, structs
from msgspec.msgpack import Decoder, Encoder

from .errors import ProtocolError
from .messages import (
    Digest,
    Id,
    Opinion,
    OpinionCall,
    OpinionMode,
    Outcome,
    RunId,
    TaskClaim,
    UpdateOffer,
    Volunteer,
    WorkProof,
)

ID_LENGTH = 32
KEY_BYTES = 32
SIGNATURE_BYTES = 64
CLAIM_BYTES = KEY_BYTES + SIGNATURE_BYTES

_encoder = Encoder()


class Signer(Protocol):
    """Who has a private key."""

    @property
    def public_bytes(self) -> bytes:
        """The raw public key."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`."""


def identity_of(public_bytes: bytes) -> str:
    """Return the id of a raw public key: 32 hex digits of its SHA-256."""
    return hashlib.sha256(public_bytes).hexdigest()[:ID_LENGTH]


def claim_of(me: Signer, statement: bytes) -> bytes:
    """Return key and signature."""
    return me.public_bytes + me.sign(statement)


def is_claim(claim: bytes, agent: str, statement: bytes) -> bool:
    """Return whether a claim is the key of an agent and its signature of the statement."""
    public, signature = claim[:KEY_BYTES], claim[KEY_BYTES:]
    return identity_of(public) == agent and verify(public, signature, statement)


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the owner of a raw public key signed the data; of no key, nothing is."""
    from .ed25519 import is_signature  # noqa: PLC0415 - who only reads has no need of the library

    return is_signature(public, signature, data)


def _statement(kind: str, *facts: object) -> bytes:
    return f"fedagent/{kind}/1\0".encode() + _encoder.encode(facts)


# ------------------------------------------------------------------- of a device


class WorkClaim(NamedTuple):
    """That an agent made an update, in a round at an edge; kept with its payment.

    `made_in` is the earlier round in which it was begun; 0: this one (ADR 33).
    """

    run: RunId
    round: int
    edge: Id
    agent: Id
    task: Digest
    base: Digest
    update: Digest
    size: int
    num_samples: int
    iterations: int
    made_in: int = 0

    @classmethod
    def offered(cls, offer: UpdateOffer, edge: Id, agent: Id) -> "WorkClaim":
        """Return the work of an offer."""
        facts = (offer.task, offer.base, offer.digest, offer.size)
        stats = offer.stats
        done = (stats.num_samples, stats.iterations, offer.made_in)
        return cls(offer.run, offer.round, edge, agent, *facts, *done)

    @classmethod
    def reported(
        cls, outcome: Outcome, proof: WorkProof, *, run: RunId, round_: int, edge: Id, task: Digest
    ) -> "WorkClaim":
        """Return the work of an outcome."""
        facts = (proof.base.hex(), proof.update.hex(), proof.size)
        stats = outcome.stats
        done = (stats.num_samples, stats.iterations, outcome.made_in)
        return cls(run, round_, edge, outcome.agent, task, *facts, *done)

    @classmethod
    def read(cls, statement: bytes) -> "WorkClaim":
        """Return the work that a statement is of; raises `ProtocolError`."""
        try:
            return _works.decode(statement.partition(b"\0")[2])
        except DecodeError as error:
            raise ProtocolError("no statement of work") from error

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return _statement("work", *self)


_works = Decoder(WorkClaim)


def proof_of(offer: UpdateOffer) -> WorkProof | None:
    """Return what an edge hands on of a claim that it verified; None where there is none."""
    if len(offer.claim) != CLAIM_BYTES:
        return None
    return WorkProof(
        update=bytes.fromhex(offer.digest),
        size=offer.size,
        base=bytes.fromhex(offer.base),
        public=offer.claim[:KEY_BYTES],
        signature=offer.claim[KEY_BYTES:],
    )


def is_proved(outcome: Outcome, *, run: RunId, round_: int, edge: Id, task: Digest) -> bool:
    """Return whether the agent of an outcome signed that it did this work at this edge."""
    proof = outcome.proof
    if proof is None or identity_of(proof.public) != outcome.agent:
        return False
    work = WorkClaim.reported(outcome, proof, run=run, round_=round_, edge=edge, task=task)
    return verify(proof.public, proof.signature, work.statement)


def terms(edge: Id, agent: Id, *, seq: int, price: int, available: bool) -> bytes:
    """Return what a device asks for, whether it trains, and since which report.

    Where several edges name one device its own word decides, so that none of them can end or
    reprice its work at the others.
    """
    return _statement("terms", edge, agent, seq, price, available)


class Asked(Struct, frozen=True, kw_only=True):
    """What a device was asked; `task` says what a score is of."""

    site: str
    run: RunId
    round: int
    task: Digest
    model: Digest

    def opinion(self, agent: Id, said: Opinion) -> bytes:
        """Return what the claim of an opinion is a signature of, as exact as columns are."""
        return self.scored(agent, said.metric, said.score, said.samples, said.epsilon)

    def scored(self, agent: Id, metric: str, score: float, samples: int, epsilon: float) -> bytes:
        """Return the same by what stands in columns."""
        exact = struct.pack("<ff", score, epsilon + 0.0)
        return _statement("opinion", *structs.astuple(self), agent, metric, exact, samples)

    def volunteer(self, agent: Id, edge: Id) -> bytes:
        """Return what the claim of a volunteer is a signature of, at one edge."""
        return _statement("volunteer", *structs.astuple(self), agent, edge)


SignAnswer = Callable[[OpinionCall, Opinion | Volunteer, str], bytes]
"""Gives the `claim` of an answer to a call, for an edge; an empty one in virtual time."""

# ---------------------------------------------------------------- of a coordinator


def ledger_head(seq: int, hash_: bytes) -> bytes:
    """Return the newest entry of a ledger, which edges are witnesses of."""
    return _statement("ledger-head", seq, hash_)


class Assigning(NamedTuple):
    """That an agent is to train on a task, in a round at an edge."""

    run: RunId
    round: int
    edge: Id
    agent: Id
    task: Digest

    def statement(self, site: str) -> bytes:
        """Return what is signed."""
        return _statement("assignment", site, *self)


class Calling(NamedTuple):
    """That the devices of a run are asked what they think of a model, or what samples they have."""

    run: RunId
    round: int
    task: Digest
    model: Digest
    mode: OpinionMode
    slot: int

    def statement(self, site: str) -> bytes:
        """Return what is signed."""
        return _statement("call", site, *self)


def task_of_run(site: str, run: RunId, task: Digest, until_s: int) -> bytes:
    """Return that a task is that of a run, for a while."""
    return _statement("task", site, run, task, until_s)


class Vouching:
    """The coordinator's own signature; without a certificate that shows whose it is, there is none.

    `site.standing.SiteWord` signs; this one is of a coordinator outside of a site.
    """

    def task(self, run: RunId, task: Digest) -> TaskClaim | None:  # noqa: ARG002 - `SiteWord` has
        """Return its word that a task is that of a run."""
        return None

    def sign(self, made: Assigning | Calling) -> bytes:  # noqa: ARG002 - as above
        """Return its signature that an agent is to train in a round, or of a call."""
        return b""
