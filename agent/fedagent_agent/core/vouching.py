"""What the coordinator of the site has signed: a device does nothing else for an edge of it.

An edge hands the coordinator's word on with the task, and a signature with each order and call. On
links without certificates nothing is asked for.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

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
Good = tuple[bytes, float]
"""Whose word it is, as a raw public key, and how long it is good: for seconds, or until a time."""


class Voucher(Protocol):
    """The certificates of the site, as far as tasks are concerned."""

    def asked(self, link: str) -> bool:
        """Whether only members of the site can be on a link."""

    def judge(self, run: RunId, task: Digest, claim: TaskClaim) -> Good | str:
        """Return whose word it is that a task is that of a run, or why it is none."""

    def made(self, public: bytes, made: Assigning | Calling, signature: bytes) -> bool:
        """Return whether the owner of a raw public key made an assignment, or a call."""


@dataclass(slots=True)
class Vouching:
    """Knows what the coordinator's word holds for."""

    _me: str  # the agent's id
    _voucher: Voucher | None
    _sessions: Sessions
    _counters: Counter[str]
    _good: Newest[tuple[RunId, Digest], Good] = field(default_factory=lambda: Newest(REMEMBERED))

    def stands(self, key: Key, task: Digest, now: float) -> bool:
        """Whether a task may be computed for the edge and the run of an order or a call."""
        if self._asked(key) is None:
            return True
        good = self._good.get((key.run, task))
        return good is not None and now < good[1]

    def is_made(self, key: Key, wanted: TrainOrder | OpinionCall) -> bool:
        """Whether the coordinator assigned an order, or made a call, of a task that stands."""
        if (voucher := self._asked(key)) is None:
            return True
        run, number, task = key.run, key.round, wanted.task
        public, _ = self._good[run, task]
        if isinstance(wanted, TrainOrder):
            order = Assigning(run, number, key.edge, self._me, task)
            return voucher.made(public, order, wanted.assigned)
        call = Calling(run, number, task, wanted.model, wanted.mode, wanted.slot)
        return voucher.made(public, call, wanted.signed)

    def judge(self, key: Key, task: Digest, claim: TaskClaim | None, now: float) -> str:
        """Take the word that came with a task; return why it is none."""
        if (voucher := self._asked(key)) is None:
            return ""
        found = "unsigned" if claim is None else voucher.judge(key.run, task, claim)
        if isinstance(found, str):
            self._counters[f"task_refused_{found}"] += 1
            return found
        self._good[key.run, task] = found[0], now + found[1]
        return ""

    def warn(self, edge: str, text: str) -> list[Effect]:
        """Say of an edge, once, what the coordinator has not signed."""
        session = self._sessions.get(edge)
        if session is None or session.warned:
            return []
        session.warned = True
        return [Warn(edge, text)]

    def _asked(self, key: Key) -> Voucher | None:
        voucher = self._voucher
        if voucher is None or not voucher.asked(self._sessions.link_of(key.edge)):
            return None
        return voucher
