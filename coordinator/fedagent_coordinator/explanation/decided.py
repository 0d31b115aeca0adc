"""A round as a policy decided it, and as it would have decided it otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedagent_coordinator.core.decision import solved
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import (
    MAX_MICRO,
    Aspects,
    Explains,
    IntArray,
    RoundView,
    Selection,
    SelectionPolicy,
)
from fedagent_protocol.errors import ParameterError
from fedagent_task.recipe.spec import PolicySpec

from .account import Change

RATES = ("upload_bps", "download_bps")
COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecidedRound:
    """One round, and the policy as it was before it learnt from it."""

    view: RoundView
    selection: Selection
    name: str
    seed: int
    spec: PolicySpec | None = None  # how it explores
    policy: SelectionPolicy | None = None  # None where what it knew cannot be restored
    parameters: Mapping[str, object] = field(default_factory=dict)
    free_micro: int | None = None  # for clients; None for no limit
    cap_micro: int = MAX_MICRO  # of an edge in a round
    edges: Sequence[str] = ()  # ids by index

    def pairs_of(self, client: int) -> IntArray:
        """Return the pairs of a client, int64[K]."""
        return np.flatnonzero(self.view.pair_client == client).astype(np.int64)

    def chosen_pair(self, client: int) -> int | None:
        """Return the pair of a client that was chosen."""
        chosen = self.selection.pairs
        its = chosen[self.view.pair_client[chosen] == client]
        return int(its[0]) if len(its) else None

    def best_pair(self, client: int) -> int | None:
        """Return the pair that was chosen, else the one of the best score that can be paid."""
        pairs = self.pairs_of(client)
        if not len(pairs):
            return None
        if (chosen := self.chosen_pair(client)) is not None:
            return chosen
        score = np.nan_to_num(self.selection.scores[pairs], nan=-np.inf)
        dear = self.view.client_price[client] > self.view.edge_budget[self.view.pair_edge[pairs]]
        return int(pairs[np.lexsort((-score, dear))[0]])

    def last_chosen(self, pair: int) -> int | None:
        """Return the pair that was chosen last, at the edge of this one if any was."""
        chosen = self.selection.pairs
        near = chosen[self.view.pair_edge[chosen] == self.view.pair_edge[pair]]
        its = near if len(near) else chosen
        return int(its[-1]) if len(its) else None

    def edge_id(self, edge: int) -> str:
        """Return the id of an edge, or its number where it has none."""
        return self.edges[edge] if edge < len(self.edges) else str(edge)

    def aspects(self) -> Aspects:
        """Return what the policy's scores are made of, as far as it says."""
        policy: object = self.policy
        if not isinstance(policy, Explains):
            return {}
        try:
            return policy.aspects(self.view)
        except PolicyError:
            return {}

    def again(self, change: Change | None = None, client: int = 0) -> Selection | None:
        """Solve the round again, or as it were with a change and without exploration.

        None where the policy refuses it.
        """
        if self.policy is None:
            return None
        view, free = self.view, self.free_micro
        if change is not None:
            view, free = self.changed(change, client)
        try:
            spec = self.spec if change is None else None
            return solved(self.policy, view, seed=self.seed, free_micro=free, spec=spec)
        except (PolicyError, ParameterError):
            return None

    def selects(self, client: int, change: Change) -> bool:
        """Return whether the client would be selected after a change."""
        found = self.again(change, client)
        return found is not None and client in self.view.pair_client[found.pairs]

    def changed(self, change: Change, client: int) -> tuple[RoundView, int | None]:
        """Return the view after a change, and what the run may pay."""
        view, free = self.view, self.free_micro
        match change.what:
            case "price":
                price = view.client_price.copy()
                price[client] = int(change.to)
                return replace(view, client_price=price), free
            case "availability":
                there = view.client_available.copy()
                there[client] = True
                return replace(view, client_available=there), free
            case "budget":
                budget = view.edge_budget.copy()
                budget[self._edge(change.edge)] = int(change.to)
                return replace(view, edge_budget=budget), free
            case "run_budget":
                budget = np.minimum(self.cap_micro, np.int64(change.to))
                return replace(view, edge_budget=np.full_like(view.edge_budget, budget)), int(
                    change.to
                )
            case "rate" | "compute":
                names = RATES if change.what == "rate" else (COMPUTE,)
                columns = [i for i, name in enumerate(view.feature_names) if name in names]
                features = view.pair_features.copy()
                its = view.pair_client == client
                for column in columns:
                    values = features[its, column].astype(np.float64)
                    features[its, column] = values * change.factor
                return replace(view, pair_features=features), free

    def _edge(self, named: str) -> int:
        return self.edges.index(named) if named in self.edges else int(named)
