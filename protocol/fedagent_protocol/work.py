"""Work claims: an agent's own signature that it made this update, in this round, at this edge.

An edge cannot make one, and relabelling an update to another round breaks it. They are checked
before an update is accepted and before it is paid, and kept with the payment. The claim of work
that was begun in an earlier round names that round as well (ADR 33). Pure.
"""

from collections.abc import Callable

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from .errors import MalformedError
from .messages import Digest, Id, Outcome, RunId, UpdateOffer, WorkProof
from .signatures import CLAIM_BYTES, KEY_BYTES, identity_of, is_claim, verify

_SIGNED = b"fedagent/work/1\x00"
_encoder = Encoder()
_FACTS = (
    *("run", "round", "edge", "agent", "task", "base", "update", "size", "num_samples"),
    *("iterations", "made_in"),
)
_Facts = tuple[str, int, str, str, str, str, str, int, int, int]
_decoder = Decoder(_Facts)
_late_decoder = Decoder(tuple[str, int, str, str, str, str, str, int, int, int, int])
_TEN = 0x9A
"""First byte of an array of ten: of work that was begun and done in one round."""


def claim_bytes(
    *,
    run: RunId,
    round_: int,
    edge: Id,
    agent: Id,
    task: Digest,
    base: Digest,
    update: Digest,
    size: int,
    num_samples: int,
    iterations: int,
    made_in: int = 0,
) -> bytes:
    """Return what the signature of a claim covers."""
    facts = (run, round_, edge, agent, task, base, update, size, num_samples, iterations)
    return _SIGNED + _encoder.encode((*facts, made_in) if made_in else facts)


def sign_claim(
    offer: UpdateOffer, *, edge: Id, agent: Id, public: bytes, sign: Callable[[bytes], bytes]
) -> bytes:
    """Return the `claim` of an offer: key and signature."""
    return public + sign(_claimed(offer, edge=edge, agent=agent))


def is_claimed(offer: UpdateOffer, *, edge: Id, agent: Id) -> bool:
    """Return whether the agent signed that it made this update for this edge."""
    return is_claim(offer.claim, agent, _claimed(offer, edge=edge, agent=agent))


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
    claimed = claimed_in(outcome, run=run, round_=round_, edge=edge, task=task)
    return verify(proof.public, proof.signature, claimed)


def claimed_in(outcome: Outcome, *, run: RunId, round_: int, edge: Id, task: Digest) -> bytes:
    """Return what the proof of an outcome must be a signature of; empty without a proof."""
    proof = outcome.proof
    if proof is None:
        return b""
    return claim_bytes(
        run=run,
        round_=round_,
        edge=edge,
        agent=outcome.agent,
        task=task,
        base=proof.base.hex(),
        update=proof.update.hex(),
        size=proof.size,
        num_samples=outcome.stats.num_samples,
        iterations=outcome.stats.iterations,
        made_in=outcome.made_in,
    )


def work_in(claim: bytes) -> dict[str, object]:
    """Return what a kept claim says, by name; `made_in` where it is of an earlier round.

    Raises:
        MalformedError: It is no claim.
    """
    try:
        packed = claim.removeprefix(_SIGNED)
        facts = (_decoder if packed[:1] == bytes([_TEN]) else _late_decoder).decode(packed)
    except DecodeError as error:
        raise MalformedError("no claim of work") from error
    return dict(zip(_FACTS, facts, strict=False))


def _claimed(offer: UpdateOffer, *, edge: Id, agent: Id) -> bytes:
    return claim_bytes(
        run=offer.run,
        round_=offer.round,
        edge=edge,
        agent=agent,
        task=offer.task,
        base=offer.base,
        update=offer.digest,
        size=offer.size,
        num_samples=offer.stats.num_samples,
        iterations=offer.stats.iterations,
        made_in=offer.made_in,
    )
