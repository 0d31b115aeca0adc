"""A device's part in secure aggregation: one object for one round (Bonawitz et al., CCS 2017).

It reveals of every other device either the share of its seed or that of its key, once, and only
for survivors that are enough, and that have all signed the roster and the cohort that it was shown
itself (`keys`). What an edge shows to one device alone is of no use to it.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
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
    OwnKeys,
    Place,
    Seed,
    Trusted,
    agreed_bytes,
    anybody,
    bound,
    check_agreed,
    check_distinct,
    check_keys,
    commitment,
    mask_key,
    open_share,
    refused,
    seal_share,
    share_check,
    signed_bytes,
    survivors_needed,
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
    trusted: Trusted = anybody
    certificate: bytes = b""
    _own: OwnKeys = field(default_factory=OwnKeys, repr=False)
    _keys: MaskKeys | None = None
    _roster: Mapping[str, MemberKeys] = field(default_factory=dict)
    _bound: Place | None = None  # the place with the roster
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
        """Take everybody's keys, and return shares of the own secrets; or raise `ProtocolError`."""
        members = message.members
        if self._shares is not None:
            if members != self._roster:
                raise refused("second_roster", "the edge names two rosters")
            return self._shares
        if len(members) < self.spec.minimum_cohort:
            raise refused("small_cohort", f"a roster of {len(members)}")
        if members.get(self.agent) != self.keys().keys:
            raise refused("other_key", "the roster has other keys for this device")
        for agent, keys in members.items():
            check_distinct(agent, keys, members)
            check_keys(agent, keys, self.place, anybody if agent == self.agent else self.trusted)
        self._roster = dict(members)
        self._bound = bound(self.place, self.spec, members)
        self._shares = self._made(self._roster)
        return self._shares

    @property
    def _here(self) -> Place:
        assert self._bound is not None, "the roster comes first"
        return self._bound

    def _made(self, members: Mapping[str, MemberKeys]) -> MaskShares:
        order = sorted(members)
        needed = self.spec.shares_needed(len(order))
        of_seed = shamir.split(self._own.seed, len(order), needed)
        of_key = shamir.split(self._own.mask.private_bytes_raw(), len(order), needed)
        sealed: dict[str, bytes] = {}
        checks: dict[str, bytes] = {}
        for to, seed_share, key_share in zip(order, of_seed, of_key, strict=True):
            checks[to] = share_check(seed_share, key_share)
            if to == self.agent:
                self._mine = seed_share, key_share
                continue
            plain = seed_share + key_share
            sealed[to] = seal_share(
                self._own.seal, members[to].seal, self._here, self.agent, to, plain
            )
        return MaskShares(
            run=self.place.run,
            round=self.place.round,
            shares=sealed,
            commitment=commitment(self._own.seed),
            checks=checks,
        )

    def delivery(self, message: MaskDelivery) -> None:
        """Take the others' shares: who sent some is in the masks; or raise `ProtocolError`.

        One sender's false shares are left away, or it could keep everybody from taking part. With
        fewer than are needed, the others were shown another roster: no update leaves the device.
        """
        senders = frozenset(message.shares)
        cohort = senders | {self.agent}
        if self._cohort:
            if cohort != self._cohort:
                raise refused("second_cohort", "the edge names two cohorts")
            return
        if self._shares is None or self.agent in senders or not senders <= self._roster.keys():
            raise refused("out_of_order", "shares of devices that are not on the roster")
        self._check_size(len(cohort), self._least)
        found = {sender: self._opened_share(sender, message) for sender in senders}
        held = {sender: shares for sender, shares in found.items() if shares is not None}
        # Not `_least`: where nobody is to spare, one sender could keep any other from taking part.
        if len(held) + 1 < self.spec.shares_needed(len(self._roster)):
            raise refused("other_roster", f"shares of {len(held)} of {len(senders)} open")
        self._held, self._cohort = held, cohort

    def _opened_share(self, sender: str, message: MaskDelivery) -> tuple[bytes, bytes] | None:
        seal, sealed = self._roster[sender].seal, message.shares[sender]
        try:
            plain = open_share(self._own.seal, seal, self._here, sender, self.agent, sealed)
        except ProtocolError:
            return None
        of_seed, of_key = plain[: shamir.SHARE_BYTES], plain[shamir.SHARE_BYTES :]
        # Else the edge, which has the same hashes, would take this device for the liar.
        told = message.checks.get(sender, b"")
        fits = hmac.compare_digest(told, share_check(of_seed, of_key))
        return (of_seed, of_key) if fits else None

    def agreement(self) -> bytes:
        """Return the signature of whose masks this device's update wears."""
        return self.sign(agreed_bytes(self._here, self._cohort))

    @property
    def _least(self) -> int:
        return max(self.spec.minimum_cohort, self.spec.shares_needed(len(self._roster)))

    def _check_size(self, size: int, least: int) -> None:
        if size < least:
            raise refused("small_cohort", f"a cohort of {size}, not {least}")

    def seeds(self) -> list[Seed]:
        """Return the masks of this device's update."""
        found: list[Seed] = [(self._own.seed, 1)]
        for other in sorted(self._cohort - {self.agent}):
            key = mask_key(self._own.mask, self._roster[other].mask, self._here)
            found.append((key, sign_of(self.agent, other)))
        return found

    def opening(self, message: MaskAsk) -> MaskOpening:
        """Return what unmasks the survivors' sum, for one set of survivors; or `ProtocolError`."""
        survivors = frozenset(message.survivors)
        if self._opened is not None:
            if self._opened[0] != survivors:
                raise refused("second_survivors", "the edge names two sets of survivors")
            return self._opened[1]
        if not self._cohort or self.agent not in survivors or not survivors <= self._cohort:
            raise refused("out_of_order", "survivors that are not of the cohort")
        needed = survivors_needed(self.spec, len(self._roster), len(self._cohort))
        self._check_size(len(survivors), needed)
        for agent in message.survivors:
            if agent != self.agent:
                signature = message.agreed.get(agent, b"")
                identity = self._roster[agent].identity
                check_agreed(agent, identity, signature, self._here, self._cohort)
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
