"""An edge's part in secure aggregation: it carries keys and shares, and unmasks one sum.

It sees no private key of a device that took part to the end, and no seed of one that did not.
"""

from dataclasses import dataclass, field

from fedagent_protocol.messages import (
    MAX_MEMBERS,
    MaskAsk,
    MaskDelivery,
    MaskKeys,
    MaskOpening,
    MaskRoster,
    MaskShares,
    MemberKeys,
)
from fedagent_task.spec import SecureAggregationSpec

from . import shamir
from .errors import MaskingError
from .keys import Place, Seed, commitment, mask_key_of, mask_public, verify
from .member import sign_of


class VoidError(MaskingError):
    """Raised when the round can come to no sum; nothing is released."""


@dataclass(slots=True)
class Cohort:
    """One round; what does not fit is refused by `MaskingError`, and changes nothing."""

    place: Place
    spec: SecureAggregationSpec
    members: dict[str, MemberKeys] = field(default_factory=dict)
    _roster: MaskRoster | None = None
    _sent: dict[str, MaskShares] = field(default_factory=dict)
    _joined: frozenset[str] = frozenset()
    _survivors: frozenset[str] = frozenset()
    _answers: dict[str, MaskOpening] = field(default_factory=dict, repr=False)

    @property
    def least(self) -> int:
        """How many must be there at any stage."""
        return max(self.spec.minimum_cohort, self.spec.shares_needed(len(self.members)))

    @property
    def joined(self) -> frozenset[str]:
        """Who is in the masks, once that is settled."""
        return self._joined

    @property
    def sharing(self) -> bool:
        """Whether the roster is settled."""
        return self._roster is not None

    def keys(self, agent: str, message: MaskKeys) -> MaskRoster | None:
        """Take a device's keys; return the roster if it is settled, with the device on it."""
        if self._roster is not None:
            if self.members.get(agent) != message.keys:
                raise MaskingError("late_keys", f"keys of {agent[:12]} after the roster")
            return self._roster
        if agent not in self.members and len(self.members) >= MAX_MEMBERS:
            raise MaskingError("large_cohort", f"over {MAX_MEMBERS} devices")
        verify(agent, message.keys, self.place)
        self.members[agent] = message.keys
        return None

    def close_keys(self) -> MaskRoster:
        """Settle the roster; `VoidError`: it is too small."""
        if self._roster is None:
            self._check("keys", len(self.members), self.least)
            self._roster = MaskRoster(
                run=self.place.run, round=self.place.round, members=dict(self.members)
            )
        return self._roster

    def shares(self, agent: str, message: MaskShares) -> MaskDelivery | None:
        """Take a device's shares for the others; return its own if they are settled."""
        if self._joined:
            if agent not in self._joined:
                raise MaskingError("late_shares", f"shares of {agent[:12]} after the others'")
            return self.delivery(agent)
        if self._roster is None or agent not in self.members:
            raise MaskingError("out_of_order", "shares without keys")
        if message.shares.keys() != self.members.keys() - {agent}:
            raise MaskingError("missing_share", f"{agent[:12]} has no share for somebody")
        self._sent.setdefault(agent, message)
        return None

    @property
    def all_shared(self) -> bool:
        """Whether everybody on the roster has sent shares."""
        return self._roster is not None and self._sent.keys() == self.members.keys()

    def close_shares(self) -> frozenset[str]:
        """Settle who is in the masks; `VoidError`: too few."""
        if not self._joined:
            self._check("shares", len(self._sent), self.least)
            self._joined = frozenset(self._sent)
        return self._joined

    def delivery(self, agent: str) -> MaskDelivery:
        """Return the shares for one device."""
        others = self._joined - {agent}
        found = {other: self._sent[other].shares[agent] for other in sorted(others)}
        return MaskDelivery(run=self.place.run, round=self.place.round, shares=found)

    def survivors(self, agents: frozenset[str]) -> MaskAsk:
        """Settle whose updates are in the sum; `VoidError`: too few."""
        if not self._survivors:
            self._check("updates", len(agents & self._joined), self.least)
            self._survivors = agents & self._joined
        who = tuple(sorted(self._survivors))
        return MaskAsk(run=self.place.run, round=self.place.round, survivors=who)

    @property
    def unanswered(self) -> frozenset[str]:
        """Survivors whose answer is missing."""
        return self._survivors - self._answers.keys()

    def opening(self, agent: str, message: MaskOpening) -> bool:
        """Take a survivor's answer; return whether there are enough."""
        if agent not in self._survivors:
            raise MaskingError("out_of_order", "an answer of no survivor")
        if not message.shares.keys() <= self._joined:
            raise MaskingError("out_of_order", "shares of who is not in the masks")
        self._answers.setdefault(agent, message)
        return all(len(self._held(agent)) >= self._needed for agent in self._joined)

    @property
    def _needed(self) -> int:
        return self.spec.shares_needed(len(self.members))

    def _held(self, agent: str) -> dict[int, bytes]:
        """Return shares of one device's secret by place, as many as are needed."""
        places = {member: place for place, member in enumerate(sorted(self.members), start=1)}
        found = {
            places[by]: answer.shares[agent]
            for by, answer in sorted(self._answers.items())
            if agent in answer.shares
        }
        return dict(list(found.items())[: self._needed])

    def unmask(self) -> list[Seed]:
        """Return the masks that are left in the survivors' sum, to be added to it.

        Raises:
            VoidError: Shares are missing, or do not give what devices are held to.
        """
        seeds: list[Seed] = []
        for agent in sorted(self._joined):
            held = self._held(agent)
            self._check("answers", len(held), self._needed)
            try:
                secret = shamir.join(held)
            except ValueError as error:
                raise VoidError("bad_share", f"{agent[:12]}: {error}") from error
            if agent in self._survivors:
                if commitment(secret) != self._sent[agent].commitment:
                    raise VoidError("bad_share", f"{agent[:12]}: another seed than it promised")
                seeds.append((secret, -1))
                continue
            if mask_public(secret) != self.members[agent].mask:
                raise VoidError("bad_share", f"{agent[:12]}: another key than it promised")
            for other in sorted(self._survivors):
                key = mask_key_of(secret, self.members[other].mask, self.place)
                seeds.append((key, -sign_of(other, agent)))
        return seeds

    def _check(self, what: str, found: int, least: int) -> None:
        if found < least:
            raise VoidError("small_cohort", f"{what} of {found} devices, {least} are needed")
