"""What learns in a run, and one round as it decides it: who trains, where, how long.

In placed rounds one edge is rented, trains with its agents, and its model is the global one:
docs/adr/0006-placed-rounds.md says what is paid when; ALGORITHMS section 7 what is learnt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.iterations import IterationControl
from fedagent_coordinator.iterations.fixed import LearnerControl
from fedagent_coordinator.placement.base import Placement, PlacementPolicy, PlacementView
from fedagent_coordinator.policies.base import (
    MAX_MICRO,
    Bound,
    Feedback,
    IntArray,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    State,
    round_rng,
)
from fedagent_coordinator.policies.exploration import explored
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.policies.state import Array, ArrayState, taken
from fedagent_task.recipe.spec import PolicySpec

from .edges import EdgeSession
from .effects import UNPLACED, Controls, Reserve
from .observation import Observed
from .readiness import BUDGET, PRICES, RENTS
from .settings import Settings
from .trust import EdgeBackoff, Trust

OPEN_HORIZON = 1000
"""Rounds that a run without an end is first taken to have."""
NOBODY = -1
"""Instead of a price: there is nobody to pay."""
TRUST = "trust/"


@dataclass(slots=True)
class Learning:
    """All that learns from settled rounds, kept in one state.

    Three policies decide who trains, how often, and which edge is rented if any; what claims come
    to, whom to trust and which edges to pass over is learnt whatever they are. |M_t| is `steps` of
    the task.
    """

    policy: SelectionPolicy
    control: IterationControl = field(default_factory=LearnerControl)
    placement: PlacementPolicy | None = None
    steps: int = 1
    trust: Trust = field(default_factory=Trust)
    backoff: EdgeBackoff = field(default_factory=EdgeBackoff)

    def learn(self, feedback: Feedback, controls: Controls) -> None:
        """Learn from a settled round."""
        self.policy.learn(feedback)
        self.trust.learn(feedback)
        self.control.learn(feedback, horizon=controls.horizon, steps=self.steps)
        if self.placement is not None:
            placed = controls.placement
            if placed.edge is not None:
                placed = replace(placed, rent_micro=feedback.rent_micro)  # as it was paid
            self.placement.learn(placed, feedback.psi)
            self.backoff.learn(placed, feedback)

    def state(self) -> State:
        """Return a copy of everything learnt, in one namespace; the policy's names are bare."""
        state: dict[str, Array] = dict(self.policy.state())
        for prefix, part in self._parts().items():
            state |= {prefix + key: array for key, array in part.state().items()}
        return state

    def restore(self, state: State) -> None:
        """Continue from `state` exactly."""
        rest, parts = dict(state), self._parts()
        found = {prefix: taken(rest, prefix) for prefix in parts}
        for prefix, part in parts.items():
            part.restore(found[prefix])
        self.policy.restore(rest)

    def _parts(self) -> dict[str, ArrayState | IterationControl | PlacementPolicy]:
        parts: dict[str, ArrayState | IterationControl | PlacementPolicy] = {
            "iterations/": self.control,
            TRUST: self.trust,
        }
        if self.placement is not None:
            parts |= {"placement/": self.placement, "backoff/": self.backoff}
        return parts


def decide(
    learning: Learning,
    settings: Settings,
    observed: Observed,
    ready: Sequence[EdgeSession],
    live: Sequence[EdgeSession],
    free_micro: int | None,
    done: int,
) -> Reserve | str:
    """Return the plan of the round, or what is missing; the columns are those of the ready edges.

    Changes nothing. `free_micro` is what is left of the run's budget, `done` how many rounds are.

    Raises:
        PolicyError: The policy failed, or broke a constraint.
    """
    recipe = settings.recipe
    view = learning.trust.seen(observed.view, learning.policy.needs)
    placement, offers, left = UNPLACED, None, free_micro
    if learning.placement is not None:
        rents = market(view, ready, live, free_micro=free_micro, settings=settings)
        silent = any(edge.rent is None for edge in live)
        found = placed(learning, *rents, seed=recipe.seed, silent=silent)
        if isinstance(found, str):
            return found
        placement, offers = found
    if placement.edge is not None:
        # Only its pairs are seen, and its clients are paid after the rent.
        budget = view.edge_budget
        if free_micro is not None:
            left = free_micro - placement.rent_micro
            budget = np.minimum(budget, left)
        view = replace(view.take(view.pair_edge == placement.edge), edge_budget=budget)
    selection = solved(learning.policy, view, seed=recipe.seed, free_micro=left, spec=recipe.policy)
    clients = view.pair_client[selection.pairs].astype(np.int64)
    rng = round_rng(recipe.seed, view.round, Purpose.ITERATE)
    each = learning.control.choose(clients, rng)
    controls = Controls(
        iterations=round(float(each.mean())) if len(each) else 0,
        each=each if len(np.unique(each)) > 1 else None,
        horizon=horizon(offers, count=recipe.rounds.count, done=done),
        notes=learning.control.notes(),
        view=offers,
        # Nobody is ordered, so nobody is rented.
        placement=placement if len(selection.pairs) else UNPLACED,
    )
    return Reserve(view.round, view, selection, observed.client_seq[clients], controls)


def placed(
    learning: Learning,
    offers: PlacementView,
    everybody: PlacementView,
    *,
    seed: int,
    silent: bool,
) -> tuple[Placement, PlacementView] | str:
    """Return where to aggregate and what was offered, or what is missing.

    `silent` is whether an edge that is heard has not named its rent yet.
    """

    def place(view: PlacementView) -> Placement:
        """Ask the placement; asked twice, it says the same."""
        assert learning.placement is not None
        return learning.placement.choose(view, round_rng(seed, view.round, Purpose.PLACE))

    whole = place(everybody)
    if whole.exhausted:
        return BUDGET
    away = learning.backoff.away(offers.round, len(offers.edge_live))
    others = replace(offers, edge_live=offers.edge_live & ~away)
    placement = place(others)
    if placement.edge is None and away.any():
        # Those that are passed over are rented only where no other can be.
        placement = place(offers)
    else:
        offers = others
    # A placement that rents nobody though it could has the coordinator average.
    averages = whole.edge is None and everybody.edge_live.any() and not silent
    if placement.exhausted or not (offers.edge_live.any() or averages):
        return RENTS if silent else PRICES
    return placement, offers


def solved(
    policy: SelectionPolicy,
    view: RoundView,
    *,
    seed: int,
    free_micro: int | None,
    spec: PolicySpec | None = None,
) -> Selection:
    """Return whom a policy selects of a view, as far as the run can pay; changes no state.

    Of `spec` only how much it explores counts; without one it does not.

    Raises:
        PolicyError: The policy failed, or broke a constraint.
    """
    selection = policy.select(view, round_rng(seed, view.round, Purpose.SELECT))
    check_selection(view, selection.pairs)
    return exploring(view, affordable(view, selection, free_micro), seed, free_micro, spec)


def exploring(
    view: RoundView,
    selection: Selection,
    seed: int,
    free_micro: int | None,
    spec: PolicySpec | None,
) -> Selection:
    """Return the selection with what a run swaps in it, if it explores."""
    if spec is None or not spec.exploration:
        return selection
    rng = round_rng(seed, view.round, Purpose.EXPLORE)
    share, bound = spec.exploration, spec.exploration_bound
    return explored(view, selection, rng, share=share, bound=bound, free_micro=free_micro)


def affordable(view: RoundView, selection: Selection, free_micro: int | None) -> Selection:
    """Return the selection without the pairs that the run's budget cannot pay any more.

    The policy's order decides: a pair that does not fit is left out, and a later,
    cheaper one may still be taken.
    """
    if free_micro is None:
        return selection
    keep: list[bool] = []
    left = free_micro
    for price in view.pair_price[selection.pairs].tolist():
        keep.append(price <= left)
        left -= price if keep[-1] else 0
    if all(keep):
        return selection
    kept = np.asarray(keep, dtype=np.bool_)
    bound = selection.bound.copy()
    bound[selection.pairs[~kept]] = Bound.EDGE_BUDGET
    return replace(selection, pairs=selection.pairs[kept], bound=bound)


def transfer_s(view: RoundView) -> npt.NDArray[np.float64]:
    """Return float64[M], expected seconds to move the model to and from each edge's agents.

    The sum over its eligible agents of model bytes over rate, both ways, and one round trip;
    an agent that has not measured its link counts as the mean of those that have. NaN where
    nobody has.
    """
    seconds = np.zeros(len(view.pair_edge))
    for name in ("download_bps", "upload_bps"):
        rate = view.optional(name)
        seconds += 8.0 * view.model_bytes / np.where(rate > 0, rate, np.nan)
    seconds += np.nan_to_num(view.optional("rtt_s"))
    edges = len(view.edge_budget)
    place, known = view.pair_edge[view.eligible], np.isfinite(seconds[view.eligible])
    agents = np.bincount(place, minlength=edges)
    measured = np.bincount(place[known], minlength=edges)
    total = np.bincount(place[known], seconds[view.eligible][known], minlength=edges)
    return np.where(measured > 0, total / np.maximum(measured, 1) * agents, np.nan)


def market(
    view: RoundView,
    ready: Sequence[EdgeSession],
    live: Sequence[EdgeSession],
    *,
    free_micro: int | None,
    settings: Settings,
) -> tuple[PlacementView, PlacementView]:
    """Return what can be rented of the ready edges, and what all that are heard (`live`) ask.

    The first has the rents of those whose agents can be paid on top. The second has every edge
    with agents that it may pay, available or not: its rent with the price of the fewest agents of
    a round. Where none of these fits, the budget is used up.
    """
    edges = len(view.edge_budget)
    left = MAX_MICRO if free_micro is None else free_micro
    rent, asked = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    offered, heard = np.zeros(edges, np.bool_), np.zeros(edges, np.bool_)
    place, price = view.pair_edge, view.pair_price
    available = least_round(place[view.eligible], price[view.eligible], edges, settings)
    in_sight = least_round(place, price, edges, settings)
    for edge in live:
        e = edge.index
        rent[e] = edge.rent or 0
        heard[e] = edge.rent is not None and in_sight[e] != NOBODY
        asked[e] = min(int(rent[e]) + max(int(in_sight[e]), 0), MAX_MICRO)
    for edge in ready:
        e = edge.index
        known = available[e] != NOBODY and edge.rent is not None
        offered[e] = known and int(rent[e] + available[e]) <= left
    seconds = transfer_s(view)
    offers, everybody = (
        PlacementView(
            round=view.round,
            edge_live=alive,
            edge_rent=micro,
            budget_micro=left,
            edge_transfer_s=seconds,
        )
        for alive, micro in ((offered, rent), (heard, asked))
    )
    return offers, everybody


def least_round(
    edge: npt.NDArray[np.integer], price: IntArray, edges: int, settings: Settings
) -> IntArray:
    """Return int64[M], what a round at each edge costs in agents at least, of these pairs.

    That is the price of the `min_updates` cheapest, or of as many as there are and as the edge
    may pay; `NOBODY` where it may not pay any.
    """
    budget = settings.recipe.budget.per_edge_micro
    payable = price <= budget
    edge, price = edge[payable], price[payable]
    order = np.lexsort((price, edge))
    edge, price = edge[order], price[order]
    rank = np.arange(len(edge)) - np.searchsorted(edge, edge)
    first = rank < settings.recipe.rounds.min_updates
    least = np.zeros(edges, dtype=np.int64)
    np.add.at(least, edge[first], price[first])
    least = np.minimum(least, budget)
    least[np.setdiff1d(np.arange(edges), edge)] = NOBODY
    return least


def horizon(offers: PlacementView | None, *, count: int, done: int) -> float:
    """Return tau_B, the rounds that a run has: `count`, or what the budget pays rents for.

    A run without an end (`count` 0) has `OPEN_HORIZON` rounds, and twice as many each time it
    reaches them: what needs a horizon is then never wrong by more than a factor of two.
    """
    most = count
    if most == 0:
        most = OPEN_HORIZON << (done // OPEN_HORIZON).bit_length()
    if offers is None or not offers.fits.any():
        return float(most)
    mean = float(offers.edge_rent[offers.fits].mean())
    return float(min(most, done + offers.budget_micro / mean)) if mean > 0 else float(most)
