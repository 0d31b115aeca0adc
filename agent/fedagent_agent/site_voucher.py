"""Whether the coordinator of this device's site signed a task: certificates, as the core asks."""

import time
from collections.abc import Callable

from fedagent_node.envelope import EnvelopeError
from fedagent_node.site.certificates import judged_time
from fedagent_node.site.membership import Membership
from fedagent_protocol.messages import Digest, RunId, TaskClaim
from fedagent_protocol.signed import Assigning, Calling, task_of_run, verify

from .core.voucher import TaskRefusal, Vouched

LONGEST_S = 86_400.0
"""How long a word is believed at most before it is asked for again; also by a clock not set."""


class SiteVoucher:
    """The voucher of a device; `membership` gives its standing in the site, None before it joined.

    Its clock judges how old a word is, unless it is earlier than the device's own certificate.
    """

    def __init__(
        self,
        site: str,
        membership: Callable[[], Membership | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._site = site
        self._membership = membership
        self._clock = clock

    def asked(self, link: str) -> bool:
        """Whether only members of the site can be on a link."""
        member = self._membership()
        return member is not None and member.asked(link)

    def judge(self, run: RunId, task: Digest, claim: TaskClaim) -> Vouched | TaskRefusal:
        """Return whether the coordinator of the site said that a task is that of a run."""
        member = self._membership()
        if member is None:
            return TaskRefusal.NO_CERTIFICATE
        try:
            found = member.read(claim.certificate)
        except EnvelopeError as error:
            return TaskRefusal(error.refusal.value)
        if found.role != "coordinator":
            return TaskRefusal.WRONG_ROLE
        said = task_of_run(self._site, run, task, claim.until_s)
        if not verify(found.public, claim.signature, said):
            return TaskRefusal.BAD_SIGNATURE
        now = judged_time(member.site.credentials.certificate, self._clock)
        left = claim.until_s - now if now is not None else LONGEST_S
        return Vouched(found.public, min(left, LONGEST_S)) if left > 0 else TaskRefusal.EXPIRED

    def made(self, public: bytes, made: Assigning | Calling, signature: bytes) -> bool:
        """Return whether the owner of a raw public key made an assignment, or a call."""
        return verify(public, signature, made.statement(self._site))
