"""A device's part in secure aggregation: one object for one round (Bonawitz et al., CCS 2017).

It reveals of every other device either the share of its seed or that of its key, once, and only
for a cohort of survivors that is large enough. Since more than half of a cohort must answer, no
edge comes to both kinds of one device's shares by telling devices different things.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedagent_protocol.messages import (
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
from .keys import (
    OwnKeys,
    Place,
    Seed,
    commitment,
    mask_key,
    open_share,
    seal_share,
    signed_bytes,
    verify,
)


@dataclass(slots=True)
class Member:
    """One device in one round; `sign` signs by the key that its id is of.

    Every answer is the same however often it is asked for.
    """

    agent: str
    identity: bytes
    sign: Callable[[bytes], bytes] = field(repr=False)
    place: Place
    spec: SecureAggregationSpec
    trusted: Callable[[str, MemberKeys], bool] = field(default=lambda _agent, _keys: True)
    """Whether a device belongs to the site, as its certificate says."""
    certificate: bytes = b""
    _own: OwnKeys = field(default_factory=OwnKeys, repr=False)
    _keys: MaskKeys | None = None
    _roster: Mapping[str, MemberKeys] = field(default_factory=dict)
    _shares: MaskShares | None = None
    _mine: tuple[bytes, bytes] = (b"", b"")  # own shares of the own seed and key
    _held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    _cohort: frozenset[str] = frozenset()
    _opened: tuple[frozenset[str], MaskOpening] | None = None

    def keys(self) -> MaskKeys:
        """Return this device's public keys."""
        if self._keys is None:
            mask = self._own.mask.public_key().public_bytes_raw()
            seal = self._own.seal.public_key().public_bytes_raw()
            signature = self.sign(signed_bytes(self.place, mask, seal))
            made = MemberKeys(
                identity=self.identity,
                mask=mask,
                seal=seal,
                signature=signature,
                certificate=self.certificate,
            )
            self._keys = MaskKeys(run=self.place.run, round=self.place.round, keys=made)
        return self._keys

    @property
    def ready(self) -> bool:
        """Whether the masks are settled."""
        return bool(self._cohort)

    def roster(self, message: MaskRoster) -> MaskShares:
        """Take everybody's keys, and return shares of the own secrets; or raise `MaskingError`."""
        members = message.members
        if self._shares is not None:
            if members != self._roster:
                raise MaskingError("second_roster", "the edge names two rosters")
            return self._shares
        if len(members) < self.spec.minimum_cohort:
            raise MaskingError("small_cohort", f"a roster of {len(members)}")
        if members.get(self.agent) != self.keys().keys:
            raise MaskingError("other_key", "the roster has other keys for this device")
        if len({keys.mask for keys in members.values()}) != len(members):
            raise MaskingError("same_key", "two devices have one key")
        for agent, keys in members.items():
            verify(agent, keys, self.place)
            if agent != self.agent and not self.trusted(agent, keys):
                raise MaskingError("stranger", f"{agent[:12]} is not of this site")
        self._roster = dict(members)
        self._shares = self._made(self._roster)
        return self._shares

    def _made(self, members: Mapping[str, MemberKeys]) -> MaskShares:
        order = sorted(members)
        needed = self.spec.shares_needed(len(order))
        of_seed = shamir.split(self._own.seed, len(order), needed)
        of_key = shamir.split(self._own.mask.private_bytes_raw(), len(order), needed)
        sealed: dict[str, bytes] = {}
        for to, seed_share, key_share in zip(order, of_seed, of_key, strict=True):
            if to == self.agent:
                self._mine = seed_share, key_share
                continue
            plain = seed_share + key_share
            sealed[to] = seal_share(
                self._own.seal, members[to].seal, self.place, self.agent, to, plain
            )
        return MaskShares(
            run=self.place.run,
            round=self.place.round,
            shares=sealed,
            commitment=commitment(self._own.seed),
        )

    def delivery(self, message: MaskDelivery) -> None:
        """Take the others' shares: who sent some is in the masks; or raise `MaskingError`."""
        senders = frozenset(message.shares)
        cohort = senders | {self.agent}
        if self._cohort:
            if cohort != self._cohort:
                raise MaskingError("second_cohort", "the edge names two cohorts")
            return
        if self._shares is None or self.agent in senders or not senders <= self._roster.keys():
            raise MaskingError("out_of_order", "shares of devices that are not on the roster")
        self._check_size(len(cohort))
        for sender, sealed in message.shares.items():
            try:
                plain = open_share(
                    self._own.seal,
                    self._roster[sender].seal,
                    self.place,
                    sender,
                    self.agent,
                    sealed,
                )
            except MaskingError:
                continue  # its masks count all the same: others hold shares of it
            self._held[sender] = plain[: shamir.SHARE_BYTES], plain[shamir.SHARE_BYTES :]
        self._cohort = cohort

    def _check_size(self, size: int) -> None:
        least = max(self.spec.minimum_cohort, self.spec.shares_needed(len(self._roster)))
        if size < least:
            raise MaskingError("small_cohort", f"a cohort of {size}, not {least}")

    @property
    def cohort_size(self) -> int:
        """Devices on the roster, which the ring is made for."""
        return len(self._roster)

    def seeds(self) -> list[Seed]:
        """Return the masks of this device's update."""
        found: list[Seed] = [(self._own.seed, 1)]
        for other in sorted(self._cohort - {self.agent}):
            key = mask_key(self._own.mask, self._roster[other].mask, self.place)
            found.append((key, sign_of(self.agent, other)))
        return found

    def opening(self, message: MaskAsk) -> MaskOpening:
        """Return what unmasks the survivors' sum, for one set of survivors; or `MaskingError`."""
        survivors = frozenset(message.survivors)
        if self._opened is not None:
            if self._opened[0] != survivors:
                raise MaskingError("second_survivors", "the edge names two sets of survivors")
            return self._opened[1]
        if not self._cohort or self.agent not in survivors or not survivors <= self._cohort:
            raise MaskingError("out_of_order", "survivors that are not of the cohort")
        self._check_size(len(survivors))
        held = {**self._held, self.agent: self._mine}
        shares = {
            agent: of_seed if agent in survivors else of_key
            for agent, (of_seed, of_key) in held.items()
        }
        answer = MaskOpening(run=self.place.run, round=self.place.round, shares=shares)
        self._opened = survivors, answer
        return answer


def sign_of(agent: str, other: str) -> int:
    """Return whether a device adds the mask that it shares with another: they cancel out."""
    return 1 if agent < other else -1
