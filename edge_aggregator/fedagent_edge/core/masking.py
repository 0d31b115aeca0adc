"""Secure aggregation of one round at an edge: who is in the masks, and what takes them off."""

import math
from collections.abc import Callable, Collection
from enum import Enum

from fedagent_node.effects import Effect, Send
from fedagent_protocol import messages as m
from fedagent_protocol.errors import ProtocolError
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.cohort import Cohort
from fedagent_task.secure_aggregation.keys import Place, Seed, Trusted

ASK_AGAIN_S = 0.5
REPORT_S = 1.0
"""How long after `max_wait` a report may still be in time for the coordinator."""
NOT_IN_COHORT = "not_in_cohort"
"""Reason for the update of an agent that is not in the masks."""
BARRED = "masking_barred"
"""The same of one that gave false shares in an earlier round of the run."""
FALSE_SHARES = "masking_false_shares"
"""Reason for the update of an agent that gave false shares; it is not paid."""


class _Phase(Enum):
    KEYS = "keys"
    SHARES = "shares"
    UPDATES = "updates"
    ANSWERS = "answers"
    OVER = "over"


class Masking:
    """One round's keys, shares and answers.

    Attributes:
        given_up: Why there can be no sum: too few took part.
        seeds: What takes the masks off the sum, once enough have answered.
    """

    def __init__(
        self,
        order: m.RoundOrder,
        spec: SecureAggregationSpec,
        place: Place,
        began_at: float,
        ended: Callable[[], set[str]],
        *,
        trusted: Trusted,
        barred: frozenset[str],
    ) -> None:
        self.given_up = ""
        self.seeds: tuple[Seed, ...] | None = None
        self.cohort = Cohort(place, spec, trusted, barred=barred)
        self._ordered, self._ended = {one.agent for one in order.assignments}, ended
        self._spec = spec
        self.refused = dict.fromkeys(barred, BARRED)
        self._phase = _Phase.KEYS
        # Half of the time until the deadline is the training's.
        self._stage_s = min(spec.stage_s, order.deadline_ms / 4000)
        self._until = began_at + self._stage_s
        self._again_at = math.inf

    def refusal(self, agent: str, agreed: bytes) -> tuple[str, str]:
        """Return reason and detail why an update cannot be used.

        `agreed` is whose masks the agent says that it wears.
        """
        if agent not in self.cohort.joined:
            return NOT_IN_COHORT, "it is not in the cohort, so its masks cannot be removed"
        try:
            self.cohort.agree(agent, agreed)
        except ProtocolError as error:
            return "masking_not_agreed", str(error)
        return "", ""

    def receive(
        self, agent: str, message: m.MaskKeys | m.MaskShares | m.MaskOpening, now: float
    ) -> list[Effect]:
        """Take what an agent of the round sends; `ProtocolError`: it does not fit."""
        answer: m.MaskRoster | m.MaskDelivery | None = None
        match message:
            case m.MaskKeys():
                try:
                    answer = self.cohort.keys(agent, message)
                except ProtocolError as error:
                    self.refused[agent] = error.reason
                    raise
            case m.MaskShares():
                answer = self.cohort.shares(agent, message)
            case m.MaskOpening() if self._phase is _Phase.ANSWERS:
                if self.cohort.opening(agent, message):
                    self._unmask()
        sends: list[Effect] = [] if answer is None else [Send(agent, answer)]
        return sends + self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Go on to the next stage where everybody is there, or the time is over."""
        cohort = self.cohort
        try:
            match self._phase:
                case _Phase.KEYS if now >= self._until or self._none_missing(cohort.members):
                    roster = cohort.close_keys()
                    self._phase, self._until = _Phase.SHARES, now + self._stage_s
                    return [Send(agent, roster) for agent in roster.members]
                case _Phase.SHARES if now >= self._until or cohort.all_shared:
                    joined = cohort.close_shares()
                    self._phase = _Phase.UPDATES
                    return [Send(agent, cohort.delivery(agent)) for agent in sorted(joined)]
                case _Phase.ANSWERS if now >= self._until:
                    self._unmask()
                case _Phase.ANSWERS if now >= self._again_at:
                    return self._ask(now)
        except ProtocolError as error:
            self._end(str(error))
        return []

    def is_out(self, agent: str) -> bool:
        """Whether an update that is not here yet could not be in the sum any more."""
        match self._phase:
            case _Phase.SHARES:
                return agent not in self.cohort.members
            case _Phase.UPDATES:
                return agent not in self.cohort.joined
        return False

    def close(self, used: frozenset[str], now: float, give_up_at: float) -> list[Effect]:
        """Ask those whose updates are in the sum to take the masks off."""
        self._phase = _Phase.ANSWERS
        latest = max(now + ASK_AGAIN_S, give_up_at + REPORT_S)
        self._until = min(now + self._spec.stage_s, latest)
        try:
            self.cohort.survivors(used)
        except ProtocolError as error:
            self._end(str(error))
            return []
        return self._ask(now)

    @property
    def due(self) -> float:
        """When `tick` is wanted."""
        if self._phase in (_Phase.UPDATES, _Phase.OVER):
            return math.inf
        return min(self._until, self._again_at)

    def _none_missing(self, there: Collection[str]) -> bool:
        return self._ordered <= {*there, *self._ended(), *self.cohort.barred}

    def _ask(self, now: float) -> list[Effect]:
        self._again_at = now + ASK_AGAIN_S
        ask = self.cohort.survivors(frozenset())
        return [Send(agent, ask) for agent in sorted(self.cohort.unanswered)]

    def _unmask(self) -> None:
        try:
            self.seeds = tuple(self.cohort.unmask())
            self._phase = _Phase.OVER
        except ProtocolError as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        self._phase, self.given_up = _Phase.OVER, f"secure aggregation: {why}"[:200]
