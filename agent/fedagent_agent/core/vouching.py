"""What the coordinator of the site has signed: a device does nothing else for an edge of it.

An edge hands the coordinator's word on with the task, and a signature with each order and call. On
links without certificates nothing is asked for.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fedagent_node.effects import Effect, Warn
from fedagent_protocol.messages import Digest, OpinionCall, RunId, TaskClaim, TrainOrder
from fedagent_protocol.signed import Assigning, Calling

from .effects import Key, Newest
from .session import Sessions

REMEMBERED = 64
UNASSIGNED = (
    "the coordinator has not signed it for this device and edge: update the edge; "
    "if you do not trust it, revoke it: `fedagent devices revoke`"
)


HINTS = {
    "unsigned": "the edge shows no signature of this site's coordinator: "
    "install the same version on both",
    "bad_signature": "the coordinator has not signed it for this run: if you do not "
    "trust the edge, revoke it: `fedagent devices revoke`",
    "no_certificate": "who signed it has no certificate of this site",
    "wrong_role": "who signed it is not the coordinator: if you do not trust the edge, "
    "revoke it: `fedagent devices revoke`",
    "revoked": "the certificate of who signed it was revoked",
    "expired": "the coordinator signed it too long ago: connect the edge to the "
    "coordinator, and compare the clocks",
}
"""Why a task is not taken, counted as ``task_refused_<word>``, and what it most likely means."""


class Vouched(NamedTuple):
    """Whose word it is, as a raw public key, and for how many seconds it is good."""

    public: bytes
    for_s: float


class Voucher(Protocol):
    """The certificates of the site, as far as tasks are concerned."""

    def asked(self, link: str) -> bool:
        """Whether only members of the site can be on a link."""

    def judge(self, run: RunId, task: Digest, claim: TaskClaim) -> Vouched | str:
        """Return whether the coordinator of the site said that a task is that of a run."""

    def made(self, public: bytes, made: Assigning | Calling, signature: bytes) -> bool:
        """Return whether the owner of a raw public key made an assignment, or a call."""


@dataclass(slots=True)
class Vouching:
    """Knows what the coordinator's word holds for."""

    _me: str  # the agent's id
    _voucher: Voucher | None
    _sessions: Sessions
    _counters: Counter[str]
    _good: Newest[tuple[RunId, Digest], tuple[bytes, float]] = field(
        default_factory=lambda: Newest(REMEMBERED)
    )
    """By whose key, and until when."""

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

    def judge(self, key: Key, task: Digest, claim: TaskClaim | None, now: float) -> str:
        """Take the word that came with a task; return why it is none."""
        voucher = self._asked_at(key.edge)
        if voucher is None:
            return ""
        found = "unsigned" if claim is None else voucher.judge(key.run, task, claim)
        if isinstance(found, str):
            self._counters[f"task_refused_{found}"] += 1
            return found
        self._good[key.run, task] = found.public, now + found.for_s
        return ""

    def warn(self, edge: str, text: str) -> list[Effect]:
        """Say of an edge, once, what the coordinator has not signed."""
        session = self._sessions.get(edge)
        if session is None or session.warned:
            return []
        session.warned = True
        return [Warn(edge, text)]

    def _asked_at(self, edge: str) -> Voucher | None:
        voucher = self._voucher
        return (
            voucher if voucher is not None and voucher.asked(self._sessions.link_of(edge)) else None
        )


_NONE = (b"", -math.inf)
