"""What the coordinator of the site has signed: a device does nothing else for an edge of it.

An edge hands the coordinator's word on with the task, and a signature with each order and call. On
links without certificates nothing is asked for.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from fedagent_node.effects import Effect, Warn
from fedagent_protocol.messages import Digest, OpinionCall, RunId, TaskClaim, TrainOrder
from fedagent_protocol.signed import Assigning, Calling

from .effects import Key

REMEMBERED = 64
UNASSIGNED = (
    "the coordinator has not signed it for this device and edge: update the edge; "
    "if you do not trust it, revoke it: `fedagent devices revoke`"
)


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


class Vouching:
    """Knows what the coordinator's word holds for.

    Args:
        me: The agent's id.
        voucher: None: every edge is believed; virtual time.
        link_of: Gives the link on which an edge is heard.
    """

    def __init__(
        self,
        me: str,
        voucher: Voucher | None,
        link_of: Callable[[str], str],
        counters: Counter[str],
    ) -> None:
        self._me = me
        self._voucher = voucher
        self._link_of = link_of
        self._counters = counters
        self._good: OrderedDict[tuple[RunId, Digest], tuple[bytes, float]] = OrderedDict()
        """By whose key, and until when."""
        self._told: OrderedDict[str, None] = OrderedDict()
        """Edges of which it was said that something of theirs is not signed."""

    def stands(self, key: Key, task: Digest, now: float) -> bool:
        """Whether a task may be computed for the edge and the run of an order or a call."""
        return self._asked_at(key.edge) is None or now < self._good.get((key.run, task), _NONE)[1]

    def is_made(self, key: Key, wanted: TrainOrder | OpinionCall) -> bool:
        """Whether the coordinator assigned an order, or made a call, of a task that stands."""
        voucher = self._asked_at(key.edge)
        if voucher is None:
            return True
        run, number, task = key.run, key.round, wanted.task
        if isinstance(wanted, TrainOrder):
            order = Assigning(run, number, key.edge, self._me, task)
            return voucher.made(self._good[run, task][0], order, wanted.assigned)
        call = Calling(run, number, task, wanted.model, wanted.mode, wanted.slot)
        return voucher.made(self._good[run, task][0], call, wanted.signed)

    def judge(
        self, key: Key, task: Digest, claim: TaskClaim | None, now: float
    ) -> TaskRefusal | None:
        """Take the word that came with a task; return why it is none."""
        voucher = self._asked_at(key.edge)
        if voucher is None:
            return None
        found = TaskRefusal.UNSIGNED if claim is None else voucher.judge(key.run, task, claim)
        if isinstance(found, TaskRefusal):
            self._counters[f"task_refused_{found}"] += 1
            return found
        self._good[key.run, task] = found.public, now + found.for_s
        while len(self._good) > REMEMBERED:
            self._good.popitem(last=False)
        return None

    def warn(self, edge: str, text: str) -> list[Effect]:
        """Say of an edge, once, what the coordinator has not signed."""
        if edge in self._told:
            return []
        self._told[edge] = None
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return [Warn(edge, text)]

    def _asked_at(self, edge: str) -> Voucher | None:
        voucher = self._voucher
        return voucher if voucher is not None and voucher.asked(self._link_of(edge)) else None


_NONE = (b"", -math.inf)
