"""An edge's part in secure aggregation: it carries keys and shares, and unmasks one sum.

It sees no private key of a device that took part to the end, and no seed of one that did not.
What devices would refuse it refuses first, and who lies is named, unless it is one's word against
another's.
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
from fedagent_task.recipe.spec import SecureAggregationSpec

from . import shamir
from .keys import (
    Place,
    Seed,
    Trusted,
    anybody,
    bound,
    check_agreed,
    check_distinct,
    check_keys,
    check_of,
    commitment,
    mask_key_of,
    mask_public,
    refused,
    survivors_needed,
)
from .member import sign_of

HASH_BYTES = 32


@dataclass(slots=True)
class Cohort:
    """One round; what does not fit is refused by `ProtocolError`, and changes nothing."""

    place: Place
    spec: SecureAggregationSpec
    trusted: Trusted = anybody
    barred: frozenset[str] = frozenset()  # who lied before, and is let in no more
    # Devices whose shares proved false, and how.
    liars: dict[str, str] = field(default_factory=dict)
    members: dict[str, MemberKeys] = field(default_factory=dict)
    _roster: MaskRoster | None = None
    _sent: dict[str, MaskShares] = field(default_factory=dict)
    _bound: Place | None = None  # the place with the roster
    _joined: frozenset[str] = frozenset()
    _agreed: dict[str, bytes] = field(default_factory=dict)
    _survivors: frozenset[str] = frozenset()
    _answers: dict[str, MaskOpening] = field(default_factory=dict, repr=False)
    _dealt_false: set[str] = field(default_factory=set)

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
        if agent in self.barred:
            raise refused("barred", f"{agent[:12]} lied about shares in an earlier round")
        if self._roster is not None:
            if self.members.get(agent) != message.keys:
                raise refused("late_keys", f"keys of {agent[:12]} after the roster")
            return self._roster
        if agent not in self.members and len(self.members) >= MAX_MEMBERS:
            raise refused("large_cohort", f"over {MAX_MEMBERS} devices")
        check_keys(agent, message.keys, self.place, self.trusted)
        check_distinct(agent, message.keys, self.members)
        self.members[agent] = message.keys
        return None

    def close_keys(self) -> MaskRoster:
        """Settle the roster; `ProtocolError`: it is too small."""
        if self._roster is None:
            self._check("keys", len(self.members), self.least)
            self._bound = bound(self.place, self.spec, self.members)
            self._roster = MaskRoster(
                run=self.place.run, round=self.place.round, members=dict(self.members)
            )
        return self._roster

    def shares(self, agent: str, message: MaskShares) -> MaskDelivery | None:
        """Take a device's shares for the others; return its own if they are settled."""
        if self._joined:
            if agent not in self._joined:
                raise refused("late_shares", f"shares of {agent[:12]} after the others'")
            return self.delivery(agent)
        if self._roster is None or agent not in self.members:
            raise refused("out_of_order", "shares without keys")
        complete = message.shares.keys() == self.members.keys() - {agent}
        if not complete or message.checks.keys() != self.members.keys():
            raise refused("missing_share", f"{agent[:12]} has no share for somebody")
        self._sent.setdefault(agent, message)
        return None

    @property
    def all_shared(self) -> bool:
        """Whether everybody on the roster has sent shares."""
        return self._roster is not None and self._sent.keys() == self.members.keys()

    def close_shares(self) -> frozenset[str]:
        """Settle who is in the masks; `ProtocolError`: too few."""
        if not self._joined:
            self._check("shares", len(self._sent), self.least)
            self._joined = frozenset(self._sent)
        return self._joined

    def delivery(self, agent: str) -> MaskDelivery:
        """Return the shares for one device."""
        others = sorted(self._joined - {agent})
        return MaskDelivery(
            run=self.place.run,
            round=self.place.round,
            shares={other: self._sent[other].shares[agent] for other in others},
            checks={other: self._sent[other].checks[agent] for other in others},
        )

    def agree(self, agent: str, signature: bytes) -> None:
        """Take a device's word on whose masks its update wears; without it nobody opens."""
        if self._bound is None or agent not in self._joined:
            raise refused("out_of_order", "an update of who is not in the masks")
        identity = self.members[agent].identity
        check_agreed(agent, identity, signature, self._bound, self._joined)
        self._agreed[agent] = signature

    def survivors(self, agents: frozenset[str]) -> MaskAsk:
        """Settle whose updates are in the sum; `ProtocolError`: too few."""
        if not self._survivors:
            found = agents & self._agreed.keys()
            least = survivors_needed(self.spec, len(self.members), len(self._joined))
            self._check("updates", len(found), least)
            self._survivors = frozenset(found)
        who = tuple(sorted(self._survivors))
        agreed = {agent: self._agreed[agent] for agent in who}
        return MaskAsk(run=self.place.run, round=self.place.round, survivors=who, agreed=agreed)

    @property
    def unanswered(self) -> frozenset[str]:
        """Survivors whose answer is missing."""
        return self._survivors - self._answers.keys()

    def opening(self, agent: str, message: MaskOpening) -> bool:
        """Take a survivor's answer; return whether there are enough."""
        if agent not in self._survivors:
            raise refused("out_of_order", "an answer of no survivor")
        if not message.shares.keys() <= self._joined:
            raise refused("out_of_order", "shares of who is not in the masks")
        if agent not in self._answers:
            self._take(agent, message)
        enough = len(self._answers) >= self._needed
        return enough and all(len(self._held(agent)) >= self._needed for agent in self._joined)

    def _take(self, holder: str, message: MaskOpening) -> None:
        """Keep an answer, unless a share is not the one that the holder was given."""
        for agent, share in message.shares.items():
            known = self._sent[agent].checks[holder]
            wanted = known[:HASH_BYTES] if agent in self._survivors else known[HASH_BYTES:]
            if check_of(share) != wanted:
                self.liars[holder] = "answered with false shares"
                message = MaskOpening(run=self.place.run, round=self.place.round, shares={})
                break
        self._answers[holder] = message

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
            ProtocolError: Shares are missing, or do not give what devices are held to.
        """
        secrets = {agent: self._secret(agent) for agent in sorted(self._joined)}
        self._blame_unopened([agent for agent, secret in secrets.items() if not secret])
        false = [agent for agent in secrets if agent in self._dealt_false]
        if false:
            raise refused("bad_share", f"{false[0][:12]} {self.liars[false[0]]}")
        self._check("answers", min(map(len, map(self._held, secrets))), self._needed)
        seeds: list[Seed] = []
        for agent, secret in secrets.items():
            if agent in self._survivors:
                seeds.append((secret, -1))
                continue
            for other in sorted(self._survivors):
                key = mask_key_of(secret, self.members[other].mask, self._here)
                seeds.append((key, -sign_of(other, agent)))
        return seeds

    def _secret(self, agent: str) -> bytes:
        """Return a device's seed, or the key of one that dropped out; empty: it cannot be had.

        Holders' shares are the dealt ones, by their hashes: that they do not fit is the dealer's
        doing.
        """
        held = self._held(agent)
        if len(held) < self._needed:
            return b""
        try:
            secret = shamir.join(held)
        except ValueError:
            secret = b""
        if not self._promised(agent, secret):
            self._blame(agent, "gave out shares of another secret than it promised")
        return secret

    def _blame_unopened(self, dealers: list[str]) -> None:
        """Name who lies about shares that are missing for a dealer's secret, if that is sure.

        Either the dealer lies or the holder does. A dealer is named whom more contradict than may
        drop out, unless it takes fewer dealers than holders: or a few holders could have all the
        others barred. Who keeps its own share back is named as well.
        """
        answers = {by: answer.shares for by, answer in self._answers.items() if answer.shares}
        lacking = {
            one: {by for by, shares in answers.items() if one not in shares} for one in dealers
        }
        for one in dealers:
            if one in lacking[one]:
                self._blame(one, "kept its own share back")
        spare = len(self.members) - self._needed
        blamed = {one for one, holders in lacking.items() if len(holders) > spare}
        if len(blamed) < len(set[str]().union(*(lacking[one] for one in blamed))):
            for one in blamed:
                self._blame(one, "gave out shares that do not open")

    def _blame(self, dealer: str, how: str) -> None:
        self.liars[dealer] = how
        self._dealt_false.add(dealer)

    def _promised(self, agent: str, secret: bytes) -> bool:
        if not secret:
            return False
        if agent in self._survivors:
            return commitment(secret) == self._sent[agent].commitment
        return mask_public(secret) == self.members[agent].mask

    @property
    def _here(self) -> Place:
        assert self._bound is not None, "the roster is settled"
        return self._bound

    def _check(self, what: str, found: int, least: int) -> None:
        if found < least:
            raise refused("small_cohort", f"{what} of {found} devices, {least} are needed")
