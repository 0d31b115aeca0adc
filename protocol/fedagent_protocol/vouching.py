"""What the coordinator of a site signs of its runs, for devices that hear it through edges.

An edge hands its word on and cannot make one: a device of a site trains on no task, and for no
edge, that the coordinator did not choose. Pure.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec.msgpack import Encoder

from .messages import Digest, Id, OpinionMode, RunId, TaskClaim
from .signatures import verify

_TASK = b"fedagent/task/1\x00"
_ASSIGNMENT = b"fedagent/assignment/1\x00"
_CALL = b"fedagent/call/1\x00"
_encoder = Encoder()


class Assigning(NamedTuple):
    """That an agent is to train on a task, in a round at an edge."""

    run: RunId
    round: int
    edge: Id
    agent: Id
    task: Digest


class Calling(NamedTuple):
    """That the devices of a run are asked what they think of a model, or what samples they have."""

    run: RunId
    round: int
    task: Digest
    model: Digest
    mode: OpinionMode
    slot: int


class Vouching(Protocol):
    """The coordinator's own signature, where it has a certificate that shows whose it is."""

    def task(self, run: RunId, task: Digest) -> TaskClaim | None:
        """Return its word that a task is that of a run; None outside of a site."""

    def assignment(self, made: Assigning) -> bytes:
        """Return its signature that an agent is to train in a round; empty outside of a site."""

    def call(self, made: Calling) -> bytes:
        """Return its signature of a call; empty outside of a site."""


class NobodyVouches:
    """There is no site: nothing is signed, and nobody asks for it."""

    def task(self, run: RunId, task: Digest) -> TaskClaim | None:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return None

    def assignment(self, made: Assigning) -> bytes:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return b""

    def call(self, made: Calling) -> bytes:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return b""


def sign_task(
    *,
    site: str,
    run: RunId,
    task: Digest,
    until_s: int,
    certificate: bytes,
    sign: Callable[[bytes], bytes],
) -> TaskClaim:
    """Return the word of who has this certificate that a task is that of a run, for a while."""
    signature = sign(_task(site, run, task, until_s))
    return TaskClaim(certificate=certificate, until_s=until_s, signature=signature)


def is_task_claim(claim: TaskClaim, public: bytes, *, site: str, run: RunId, task: Digest) -> bool:
    """Return whether the owner of a raw public key said that a task is that of a run."""
    return verify(public, claim.signature, _task(site, run, task, claim.until_s))


def made_bytes(site: str, made: Assigning | Calling) -> bytes:
    """Return what the signature of an assignment, or of a call, covers."""
    domain = _CALL if isinstance(made, Calling) else _ASSIGNMENT
    return domain + _encoder.encode((site, *made))


def _task(site: str, run: RunId, task: Digest, until_s: int) -> bytes:
    return _TASK + _encoder.encode((site, run, task, until_s))
