"""What a device has of its site: whom it believes, and what it signs."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from fedagent_node.data_dir import Identity
from fedagent_node.envelope import EnvelopeError
from fedagent_node.site.membership import Membership
from fedagent_protocol.messages import (
    ContextReport,
    Digest,
    Opinion,
    OpinionCall,
    RunId,
    TaskClaim,
    Volunteer,
)
from fedagent_protocol.signed import (
    Asked,
    Assigning,
    Calling,
    WorkClaim,
    claim_of,
    task_of_run,
    terms,
    verify,
)

from .core.effects import PendingUpdate
from .core.vouching import Good

LONGEST_S = 86_400.0
"""How long a word is believed at most before it is asked for again; also by a clock not set."""


@dataclass(frozen=True, slots=True)
class SiteVoucher:
    """The voucher of a device; the site's time judges how old a word is (`Membership.now`)."""

    _site: str
    _membership: Callable[[], Membership | None]  # its standing in the site; None before it joined

    def asked(self, link: str) -> bool:
        """Whether only members of the site can be on a link."""
        member = self._membership()
        return member is not None and member.asked(link)

    def judge(self, run: RunId, task: Digest, claim: TaskClaim) -> Good | str:
        """Return whether the coordinator of the site said that a task is that of a run."""
        member = self._membership()
        if member is None:
            return "no_certificate"
        try:
            found = member.read(claim.certificate)
        except EnvelopeError as error:
            return error.detail.value
        if found.role != "coordinator":
            return "wrong_role"
        said = task_of_run(self._site, run, task, claim.until_s)
        if not verify(found.public, claim.signature, said):
            return "bad_signature"
        now = member.now()
        left = claim.until_s - now if now is not None else LONGEST_S
        if left <= 0:
            member.doubt()
            return "expired"
        return found.public, min(left, LONGEST_S)

    def made(self, public: bytes, made: Assigning | Calling, signature: bytes) -> bool:
        """Return whether the owner of a raw public key made an assignment, or a call."""
        return verify(public, signature, made.statement(self._site))


@dataclass(frozen=True, slots=True)
class Signatures:
    """What a device signs; without an identity, in virtual time, all is as it was."""

    _me: Identity | None
    _site: str

    def _claim(self, statement: Callable[[str], bytes]) -> bytes:
        return b"" if self._me is None else claim_of(self._me, statement(self._me.id))

    def work(self, update: PendingUpdate) -> PendingUpdate:
        """Return an update whose offer says who made it."""
        me, offer = self._me, update.offer
        if me is None:
            return update
        said = WorkClaim.offered(offer, update.key.edge, me.id).statement
        return dataclasses.replace(update, offer=replace(offer, claim=claim_of(me, said)))

    def terms(self, edge: str, report: ContextReport) -> bytes:
        """Return the signature of the terms in a report."""
        seq, price, available = report.seq, report.price, report.available
        return self._claim(lambda me: terms(edge, me, seq=seq, price=price, available=available))

    def answer(self, call: OpinionCall, answer: Opinion | Volunteer, edge: str) -> bytes:
        """Return the signature of an opinion, or of that the device volunteers at an edge."""
        site, number = self._site, call.round
        asked = Asked(site=site, run=call.run, round=number, task=call.task, model=call.model)
        if isinstance(answer, Opinion):
            return self._claim(lambda me: asked.opinion(me, answer))
        return self._claim(lambda me: asked.volunteer(me, edge))
