"""What the core asks of the certificates of a site, and why a task or an order is refused."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from fedagent_protocol.messages import Digest, RunId, TaskClaim
from fedagent_protocol.signed import Assigning, Calling


class TaskRefusal(StrEnum):
    """Why a task is not taken; counted as ``task_refused_<word>``."""

    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    NO_CERTIFICATE = "no_certificate"
    WRONG_ROLE = "wrong_role"
    REVOKED = "revoked"
    EXPIRED = "expired"

    @property
    def hint(self) -> str:
        """What it most likely means."""
        return HINTS[self]


HINTS = {
    TaskRefusal.UNSIGNED: "the edge shows no signature of this site's coordinator: "
    "install the same version on both",
    TaskRefusal.BAD_SIGNATURE: "the coordinator has not signed it for this run: if you do not "
    "trust the edge, revoke it: `fedagent devices revoke`",
    TaskRefusal.NO_CERTIFICATE: "who signed it has no certificate of this site",
    TaskRefusal.WRONG_ROLE: "who signed it is not the coordinator: if you do not trust the edge, "
    "revoke it: `fedagent devices revoke`",
    TaskRefusal.REVOKED: "the certificate of who signed it was revoked",
    TaskRefusal.EXPIRED: "the coordinator signed it too long ago: connect the edge to the "
    "coordinator, and compare the clocks",
}


UNASSIGNED = (
    "the coordinator has not signed it for this device and edge: update the edge; "
    "if you do not trust it, revoke it: `fedagent devices revoke`"
)


class Vouched(NamedTuple):
    """Whose word it is, as a raw public key, and for how many seconds it is good."""

    public: bytes
    for_s: float


class Voucher(Protocol):
    """The certificates of the site, as far as tasks are concerned."""

    def asked(self, link: str) -> bool:
        """Whether only members of the site can be on a link."""

    def judge(self, run: RunId, task: Digest, claim: TaskClaim) -> Vouched | TaskRefusal:
        """Return whether the coordinator of the site said that a task is that of a run."""

    def made(self, public: bytes, made: Assigning | Calling, signature: bytes) -> bool:
        """Return whether the owner of a raw public key made an assignment, or a call."""


class NoSite:
    """There are no certificates; virtual time."""

    def asked(self, link: str) -> bool:  # noqa: ARG002 - of the protocol
        """Return that anybody can be on every link."""
        return False

    def judge(
        self,
        run: RunId,  # noqa: ARG002
        task: Digest,  # noqa: ARG002
        claim: TaskClaim,  # noqa: ARG002
    ) -> Vouched | TaskRefusal:
        """Refuse: nobody can vouch."""
        return TaskRefusal.NO_CERTIFICATE

    def made(
        self,
        public: bytes,  # noqa: ARG002
        made: Assigning | Calling,  # noqa: ARG002
        signature: bytes,  # noqa: ARG002
    ) -> bool:
        """Return that nobody made it."""
        return False
