"""Secure aggregation of one round at an edge: who is in the masks, and what takes them off."""

from collections.abc import Iterable
from enum import Enum

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import (
    MaskDelivery,
    MaskKeys,
    MaskOpening,
    MaskRoster,
    MaskShares,
)
from fedagent_task.secure_aggregation.cohort import Cohort, VoidError
from fedagent_task.secure_aggregation.errors import MaskingError
from fedagent_task.secure_aggregation.keys import Place, Seed
from fedagent_task.secure_aggregation.suspicion import Suspects, taking_turns

from .round import EdgeRound, Part, Stage
from .state import EdgeState

ASK_AGAIN_S = 0.5
REPORT_S = 1.0
"""How long after `max_wait` a report may still be in time for the coordinator."""
NOT_IN_COHORT = "not_in_cohort"
"""Reason for the update of an agent that is not in the masks."""
BARRED = "masking_barred"
"""Reason for the update of an agent that gave false shares in an earlier round of the run."""
RESTING = "masking_resting"
"""Reason for the update of an agent in whose place one that it contradicts is in the masks."""
SUSPECTS = "masking_suspects"
"""Counter of pairs whose word on a share was one against the other."""
FALSE_SHARES = "masking_false_shares"
"""Reason for the update of an agent that gave false shares; it is not paid."""


class _Phase(Enum):
    KEYS = "keys"
    SHARES = "shares"
    UPDATES = "updates"
    ANSWERS = "answers"
    OVER = "over"


class Masking:
    """One round's keys, shares and answers; `rnd.void` is set where there are too few.

    Attributes:
        seeds: What takes the masks off the sum, once enough have answered.
        turns: Pairs of which one sits out this round, since one of the two lies.
    """

    def __init__(self, rnd: EdgeRound, state: EdgeState) -> None:
        self.rnd = rnd
        self.seeds: tuple[Seed, ...] | None = None
        spec = rnd.weighing.secure
        place = Place(rnd.run, rnd.round, state.me.edge)
        barred = frozenset(state.memory.mask_liars)
        suspected = state.memory.mask_suspects
        self.turns = taking_turns(suspected, rnd.parts, barred)
        resting = frozenset(pair.rests for pair in self.turns)
        self._cohort = Cohort(
            place,
            spec,
            state.site_members(),
            barred=barred,
            resting=resting,
            suspected=suspected,
        )
        self._refused = {**dict.fromkeys(barred, BARRED), **dict.fromkeys(resting, RESTING)}
        self._phase = _Phase.KEYS
        # Half of the time until the deadline is the training's.
        self._stage_s = min(spec.stage_s, rnd.order.deadline_ms / 4000)
        self._until = rnd.began_at + self._stage_s
        self._again_at = float("inf")

    def has(self, agent: str) -> bool:
        """Whether an agent's update carries the masks of this round."""
        return agent in self._cohort.joined

    def agree(self, agent: str, signature: bytes) -> str:
        """Take whose masks an agent says that its update wears; return why it cannot be used."""
        try:
            self._cohort.agree(agent, signature)
        except MaskingError as error:
            return str(error)
        return ""

    def why_out(self, agent: str) -> str:
        """Return the reason why an agent is not in the masks."""
        return self._refused.get(agent, NOT_IN_COHORT)

    @property
    def liars(self) -> dict[str, str]:
        """Agents whose shares proved false, and how."""
        return self._cohort.liars

    @property
    def suspects(self) -> tuple[Suspects, ...]:
        """Pairs of which one lied about a share, so that the round is void."""
        return self._cohort.suspects

    def receive(
        self, agent: str, message: MaskKeys | MaskShares | MaskOpening, now: float
    ) -> list[Effect]:
        """Take what an agent of the round sends; `MaskingError`: it does not fit."""
        answer: MaskRoster | MaskDelivery | None = None
        match message:
            case MaskKeys():
                try:
                    answer = self._cohort.keys(agent, message)
                except MaskingError as error:
                    self._refused[agent] = error.reason
                    raise
            case MaskShares():
                answer = self._cohort.shares(agent, message)
            case MaskOpening() if self._phase is _Phase.ANSWERS:
                if self._cohort.opening(agent, message):
                    self._unmask()
        sends: list[Effect] = [] if answer is None else [Send(agent, answer)]
        return sends + self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Go on to the next stage where everybody is there, or the time is over."""
        try:
            match self._phase:
                case _Phase.KEYS if now >= self._until or self._none_missing(self._cohort.members):
                    return self._ask_for_shares(now)
                case _Phase.SHARES if now >= self._until or self._cohort.all_shared:
                    return self._deliver()
                case _Phase.ANSWERS if now >= self._until:
                    self._unmask()
                case _Phase.ANSWERS if now >= self._again_at:
                    return self._ask(self._cohort.unanswered, now)
        except VoidError as error:
            self._void(str(error))
        return []

    def left_out(self) -> list[Part]:
        """Return agents that are waited for although their updates could not be in the sum."""
        match self._phase:
            case _Phase.SHARES:
                inside: Iterable[str] = self._cohort.members
            case _Phase.UPDATES:
                inside = self._cohort.joined
            case _:
                return []
        waiting = (part for part in self.rnd.parts.values() if part.stage is Stage.WORKING)
        return [part for part in waiting if part.agent not in inside]

    def close(self, now: float) -> list[Effect]:
        """Ask whose updates are in the sum to take the masks off; too few: `rnd.void`."""
        used = frozenset(part.agent for part in self.rnd.parts.values() if part.weight > 0)
        self._phase = _Phase.ANSWERS
        latest = max(now + ASK_AGAIN_S, self.rnd.rule.give_up_s + REPORT_S)
        self._until = min(now + self.rnd.weighing.secure.stage_s, latest)
        try:
            self._cohort.survivors(used)
        except VoidError as error:
            self._void(str(error))
            return []
        return self._ask(self._cohort.unanswered, now)

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        if self._phase in (_Phase.UPDATES, _Phase.OVER):
            return float("inf")
        return min(self._until, self._again_at)

    # ---------------------------------------------------------------- private

    def _none_missing(self, there: Iterable[str]) -> bool:
        gone = {part.agent for part in self.rnd.parts.values() if part.stage is Stage.ENDED}
        out = self._cohort.barred | self._cohort.resting
        return self.rnd.parts.keys() <= {*there, *gone, *out}

    def _ask_for_shares(self, now: float) -> list[Effect]:
        roster = self._cohort.close_keys()
        self._phase, self._until = _Phase.SHARES, now + self._stage_s
        return [Send(agent, roster) for agent in roster.members]

    def _deliver(self) -> list[Effect]:
        joined = self._cohort.close_shares()
        self._phase = _Phase.UPDATES
        return [Send(agent, self._cohort.delivery(agent)) for agent in sorted(joined)]

    def _ask(self, agents: frozenset[str], now: float) -> list[Effect]:
        self._again_at = now + ASK_AGAIN_S
        ask = self._cohort.survivors(frozenset())
        return [Send(agent, ask) for agent in sorted(agents)]

    def _unmask(self) -> None:
        try:
            self.seeds = tuple(self._cohort.unmask())
        except VoidError as error:
            self._void(str(error))
        self._phase = _Phase.OVER

    def _void(self, why: str) -> None:
        self._phase = _Phase.OVER
        self.rnd.void = f"secure aggregation: {why}"[:200]


__all__ = ["NOT_IN_COHORT", "Masking", "MaskingError"]
