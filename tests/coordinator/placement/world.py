"""A small world of edges, and placements spelt out one edge at a time to compare with."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedagent_coordinator.placement.base import Placement, PlacementPolicy, PlacementView
from fedagent_coordinator.policies.base import Purpose, round_rng


@dataclass
class Run:
    """What happened: placements by round, and what is left of the budget."""

    placements: list[Placement] = field(default_factory=list)
    left: int = 0

    @property
    def edges(self) -> list[int | None]:
        return [p.edge for p in self.placements]

    @property
    def stopped(self) -> bool:
        return bool(self.placements) and self.placements[-1].exhausted


def view(
    t: int, rent: list[int], left: int, *, live: list[bool] | None = None, **more: list[float]
) -> PlacementView:
    transfer = more.get("transfer")
    return PlacementView(
        round=t,
        edge_live=np.array([True] * len(rent) if live is None else live, dtype=np.bool_),
        edge_rent=np.array(rent, dtype=np.int64),
        budget_micro=left,
        edge_transfer_s=None if transfer is None else np.array(transfer, dtype=np.float64),
    )


def play(
    policy: PlacementPolicy,
    views: Callable[[int, int], PlacementView],
    psi: Callable[[int, int], float | None],
    *,
    budget: int,
    rounds: int,
    first: int = 1,
    seed: int = 0,
    watch: Callable[[PlacementView, Placement], None] | None = None,
) -> Run:
    """Run until the rounds are over or the policy stops; `views(t, left)`, `psi(t, edge)`."""
    run = Run(left=budget)
    for t in range(first, first + rounds):
        seen = views(t, run.left)
        placement = policy.choose(seen, round_rng(seed, t, Purpose.PLACE))
        if watch is not None:
            watch(seen, placement)
        run.placements.append(placement)
        if placement.exhausted:
            break
        run.left -= placement.rent_micro
        policy.learn(placement, None if placement.edge is None else psi(t, placement.edge))
    return run


@dataclass
class Scalar:
    """Plays of every edge as plain lists; the indices of ALGORITHMS section 7, one by one."""

    plays: list[list[float | None]]
    r_min: float = 0.1
    kappa: float = 0.3
    q: dict[int, float] = field(default_factory=dict)
    t: int = 0

    @classmethod
    def of(cls, edges: int, r_min: float, kappa: float = 0.3) -> "Scalar":
        return cls(plays=[[] for _ in range(edges)], r_min=r_min, kappa=kappa)

    def learn(self, edge: int, psi: float | None) -> None:
        self.plays[edge].append(psi)
        if len(self.plays[edge]) == 1:
            self.q[edge] = 0.0
        else:
            self.t += 1
            s = math.sqrt(2 * math.log(self.t) / len(self.plays[edge]))
            self.q[edge] = s * (1 + 1 / self.r_min) / (self.r_min - s)

    def cost(self, edge: int) -> float:
        shown = [psi for plays in self.plays for psi in plays if psi is not None]
        low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
        total = 0.0
        for psi in self.plays[edge]:
            if psi is None:
                total += 1
            elif high > low:
                total += (psi - low) / (high - low)
        return total / len(self.plays[edge])

    def paper(self, edge: int, seen: PlacementView) -> float:
        s = math.sqrt(2 * math.log(seen.round) / len(self.plays[edge]))
        if self.r_min - s <= 0:
            return math.inf
        return -self.cost(edge) + s * (1 + 1 / self.r_min) / (self.r_min - s)

    def literal(self, edge: int, seen: PlacementView) -> float:
        return -self.cost(edge) + self.q[edge]

    def tuned(self, edge: int, seen: PlacementView) -> float:
        p = len(self.plays[edge])
        live = [int(r) for r, on in zip(seen.edge_rent, seen.edge_live, strict=True) if on]
        top = max([*live, 1])
        reward = 1 - self.cost(edge) + self.kappa * math.sqrt(2 * math.log(seen.round) / p)
        return min(1.0, reward) / max(self.r_min, int(seen.edge_rent[edge]) / top)
