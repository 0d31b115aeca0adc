"""The policies of a run, and one round as they decide it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedagent_coordinator.placement.base import Placement, PlacementPolicy, PlacementView
from fedagent_coordinator.policies.base import (
    Feedback,
    Purpose,
    Selection,
    SelectionPolicy,
    State,
    round_rng,
)
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.policies.state import Array, taken

from .edges import EdgeSession
from .effects import UNPLACED, Controls
from .iterations import IterationControl, LearnerControl
from .observation import Observed
from .orders import affordable
from .readiness import BUDGET, PRICES, RENTS
from .round_placement import Market, at_edge, charged, horizon, market
from .settings import Settings

_PLACEMENT = "placement/"
_ITERATIONS = "iterations/"


@dataclass(slots=True)
class DecisionPolicies:
    """Who trains, which edge aggregates, how many iterations.

    Attributes:
        placement: None in a run that is not placed.
        steps: |M_t|, arrival steps of a round in the task.
    """

    policy: SelectionPolicy
    control: IterationControl = field(default_factory=LearnerControl)
    placement: PlacementPolicy | None = None
    steps: int = 1

    def learn(self, feedback: Feedback, controls: Controls) -> None:
        """Learn from a settled round."""
        self.policy.learn(feedback)
        self.control.learn(feedback, horizon=controls.horizon, steps=self.steps)
        if self.placement is not None:
            self.placement.learn(charged(controls.placement, feedback), feedback.psi)

    def state(self) -> State:
        """Return a copy of everything learnt, in one namespace; the policy's names are bare."""
        state: dict[str, Array] = dict(self.policy.state())
        state |= {_ITERATIONS + key: array for key, array in self.control.state().items()}
        if self.placement is not None:
            state |= {_PLACEMENT + key: array for key, array in self.placement.state().items()}
        return state

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: It is not one of these.
        """
        rest = dict(state)
        control, placement = taken(rest, _ITERATIONS), taken(rest, _PLACEMENT)
        self.policy.restore(rest)
        self.control.restore(control)
        if self.placement is not None:
            self.placement.restore(placement)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """One round as it was decided.

    Attributes:
        observed: What is played: all pairs, or those of the rented edge.
        seconds: How long deciding took.
    """

    observed: Observed
    selection: Selection
    controls: Controls
    seconds: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing can be decided.

    Attributes:
        reason: As the gate's; `BUDGET` ends the run, at once or after some patience.
        sure: No live edge might fit what is left as soon as more is known of it.
    """

    reason: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides one round. Changes nothing."""

    settings: Settings
    policies: DecisionPolicies
    clock: Callable[[], float]

    def decide(
        self,
        observed: Observed,
        ready: Sequence[EdgeSession],
        live: Sequence[EdgeSession],
        *,
        free_micro: int | None,
        done: int,
    ) -> Decision | Refusal:
        """Return the round, or why there is none.

        Args:
            observed: The columns of all ready edges.
            ready: Edges that answered and hold the model.
            live: All edges that are heard.
            free_micro: What is left of the run's budget; None for no limit.
            done: Rounds settled so far.

        Raises:
            PolicyError: The policy failed, or broke a constraint.
        """
        began, placement, offers = self.clock(), UNPLACED, None
        if self.policies.placement is not None:
            found = market(
                observed.view, ready, live, free_micro=free_micro, settings=self.settings
            )
            offers = found.offers
            whole = self._place(found.all)
            if whole.exhausted:
                return Refusal(BUDGET, sure=not found.doubt)
            placement = self._place(offers)
            if placement.exhausted or (not offers.edge_live.any() and not _unrented(found, whole)):
                return Refusal(RENTS if found.silent else PRICES)
        view, left = observed.view, free_micro
        if placement.edge is not None:
            view = at_edge(view, placement, free_micro)
            left = None if free_micro is None else free_micro - placement.rent_micro
        selection = self.policies.policy.select(view, self._rng(view.round, Purpose.SELECT))
        check_selection(view, selection.pairs)
        selection = affordable(view, selection, left)
        control = self.policies.control
        controls = Controls(
            iterations=control.choose(self._rng(view.round, Purpose.ITERATE)),
            horizon=horizon(offers, count=self.settings.count, done=done),
            notes=control.notes(),
            view=offers,
            # Nobody is ordered, so nobody is rented.
            placement=placement if len(selection.pairs) else UNPLACED,
        )
        return Decision(replace(observed, view=view), selection, controls, self.clock() - began)

    def _place(self, view: PlacementView) -> Placement:
        """Ask the placement; asked twice, it says the same."""
        assert self.policies.placement is not None
        return self.policies.placement.choose(view, self._rng(view.round, Purpose.PLACE))

    def _rng(self, round_: int, purpose: Purpose) -> np.random.Generator:
        return round_rng(self.settings.seed, round_, purpose)


def _unrented(found: Market, whole: Placement) -> bool:
    return whole.edge is None and bool(found.all.edge_live.any()) and not found.silent
