"""The device's part in secure aggregation, for the rounds that may still need it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fedagent_node.effects import Effect, Send, Warn
from fedagent_node.timers import Timers
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    MaskAsk,
    MaskDelivery,
    MaskKeys,
    MaskOpening,
    MaskRoster,
    MaskShares,
)
from fedagent_task.recipe.spec import SecureAggregationSpec

from .effects import Key, Newest
from .session import Session, Sessions

if TYPE_CHECKING:
    from fedagent_task.secure_aggregation.keys import Seed
    from fedagent_task.secure_aggregation.member import Member

OpenMember = Callable[[Key, SecureAggregationSpec], "Member | None"]
"""Makes a device's keys for one round; None: it has no identity to sign them with."""
AGAIN_S = 0.5
KEPT = 4
"""Rounds whose survivors may still ask for shares: an order may come before the last is over."""
LIES = frozenset(
    {"other_roster", "not_agreed", "second_roster", "second_cohort", "second_survivors"}
)
"""Refusals that an edge which tells everybody the same, once, does not come to."""


@dataclass(slots=True)
class _Part:
    member: "Member"
    give_up_at: float
    said: MaskKeys | MaskShares | None = None
    """Repeated until the next stage shows that it came."""


@dataclass(slots=True)
class Masking:
    """Keys, shares and answers; what does not fit is a `ProtocolError`, and changes nothing."""

    _opening: OpenMember
    _sessions: Sessions
    _counters: Counter[str]
    _timers: Timers
    _parts: Newest[Key, _Part] = field(default_factory=lambda: Newest(KEPT))

    def begin(
        self, key: Key, spec: SecureAggregationSpec, now: float, give_up_at: float
    ) -> list[Effect]:
        """Send keys for a round, once."""
        if key in self._parts:
            return []
        member = self._opening(key, spec)
        if member is None:
            self._counters["masking_no_identity"] += 1
            return []
        part = self._parts[key] = _Part(member, give_up_at, member.keys())
        return self._repeat(key, part, now)

    def receive(
        self, session: Session, message: MaskRoster | MaskDelivery | MaskAsk, now: float
    ) -> list[Effect]:
        """Do what the next stage asks."""
        key = Key(session.edge, message.run, message.round)
        part = self._parts.get(key)
        if part is None:
            self._counters["masking_unasked"] += 1
            return []
        said: MaskShares | MaskOpening | None = None
        try:
            match message:
                case MaskRoster():
                    said = part.member.roster(message)
                    if not part.member.ready:
                        part.said = said
                        return self._repeat(key, part, now)
                case MaskDelivery():
                    part.member.delivery(message)
                    part.said = None
                    self._timers.stop(("mask", key))
                case MaskAsk():
                    said = part.member.opening(message)
        except ProtocolError as error:
            if error.reason.removeprefix("masking_") not in LIES:
                raise
            self._counters[error.reason] += 1
            text = f"secure aggregation of round {key.round} refused: {error}: the edge may lie"
            return [Warn(key.edge, text)]
        return self._say(key, said)

    def seeds(self, key: Key) -> "tuple[Seed, ...] | None":
        """Return the masks for the update of a round; None: they are not settled yet."""
        part = self._parts.get(key)
        return tuple(part.member.seeds()) if part is not None and part.member.ready else None

    def agreement(self, key: Key) -> bytes:
        """Return the signature of whose masks the update of a round wears; empty without any."""
        part = self._parts.get(key)
        return part.member.agreement() if part is not None and part.member.ready else b""

    def closed(self, key: Key) -> None:
        """Forget a round that is over without this device."""
        self._parts.pop(key, None)
        self._timers.stop(("mask", key))

    def _repeat(self, key: Key, part: _Part, now: float) -> list[Effect]:
        """Say what was not answered, and again until the round must be over."""
        if now < part.give_up_at:
            again = partial(self._repeat, key, part)
            self._timers.at(("mask", key), now + AGAIN_S, again)
        return self._say(key, part.said)

    def _say(self, key: Key, said: MaskKeys | MaskShares | MaskOpening | None) -> list[Effect]:
        heard = self._sessions.open(key.edge) is not None
        return [Send(key.edge, said)] if said is not None and heard else []
