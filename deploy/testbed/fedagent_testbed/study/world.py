"""What a study needs of a world: a view of each round, and how the ordered pairs end."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import FloatArray, IntArray


class World(Protocol):
    """One seeded world; what it draws never depends on what was decided, unless it says so."""

    def view(self, round_: int) -> RoundView:
        """Return a round as policies see it, with the truth for oracles."""

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Let these pairs of the last view train, and say how it went."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Stages of every pair of a round, seconds: float64[P] each."""

    dt_s: FloatArray
    lc_s: FloatArray
    ut_s: FloatArray

    @property
    def tau_s(self) -> FloatArray:
        """Order to whole update."""
        return self.dt_s + self.lc_s + self.ut_s


def outcome(
    view: RoundView, pairs: IntArray, times: Times, *, min_updates: int, max_wait_s: float
) -> Feedback:
    """Return how a round ends by the rule of the edges (ALGORITHMS section 1, eq. 6).

    An edge averages what came before the deadline if that is Z at least; otherwise it waits
    for its Z-th update, `max_wait_s` at most, and fails without it. What comes after an edge
    has stopped waiting is neither known nor paid: its tau is the wait, as in
    `fedagent_edge.core.round`.
    """
    tau = times.tau_s[pairs]
    edge = view.pair_edge[pairs]
    in_time = tau <= view.deadline_s
    give_up = max(view.deadline_s, max_wait_s)
    wait = np.full(len(pairs), view.deadline_s)
    used = in_time.copy()
    for m in np.unique(edge).tolist():
        mine = np.flatnonzero(edge == m)
        wanted = min(min_updates, len(mine))
        if int(in_time[mine].sum()) >= wanted:
            continue
        fastest = mine[np.argsort(tau[mine], kind="stable")[:wanted]]
        enough = bool(tau[fastest[-1]] <= give_up)
        used[mine] = False
        used[fastest] = enough
        wait[mine] = tau[fastest[-1]] if enough else give_up
    seen = tau <= wait
    unknown = np.where(seen, 0.0, np.nan)
    nothing = np.zeros(len(pairs), dtype=np.int64)
    return Feedback(
        view=view,
        pairs=pairs,
        X=in_time,
        used=used,
        tau_s=np.where(seen, tau, wait),
        dt_s=times.dt_s[pairs] + unknown,
        lc_s=times.lc_s[pairs] + unknown,
        ut_s=times.ut_s[pairs] + unknown,
        censored=~seen,
        void=~seen,
        arrivals=nothing,
        num_samples=nothing,
        seconds_per_iteration=np.full(len(pairs), np.nan),
    )


def round_seconds(feedback: Feedback) -> float:
    """Return how long the slowest edge took: until all it ordered came, or it stopped waiting.

    The tau of who did not come is the wait, so that the largest is the end either way.
    """
    return float(feedback.tau_s.max(initial=0.0))
