"""`quick-init-ucb`: Quick-Init UCB over K-subsets (GDA, Algorithm 1; ALGORITHMS section 5).

An arm's index is its mean reward + mu sqrt(ln t / count); one that was never played has the
mean of its members' scores (`cold_start`) as its mean, and count 1. The choices are exactly
those of the algorithm that enumerates C(N, K) arms; ties go to the larger exact sum of
members' scores, then to the smaller ascending client tuple. Page: docs/policies/quick-init-ucb.md.

`ucb`, the baseline: one pull per arm first, in a seeded random order that is drawn as it goes; then
the arm of the largest index, ties to the smaller tuple. Page: docs/policies/baselines.md.
"""

import itertools
import math
from bisect import bisect_right
from typing import ClassVar

import numpy as np

from fedagent_coordinator.policies.base import (
    OPINIONS,
    BoolArray,
    Feedback,
    IntArray,
    RoundView,
    Selection,
)
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.policies.state import ArrayState

from .arms import ArmTable, Slot, candidates, check_set, keys_of, reward, take
from .first_groups import ColdStart, Scores
from .subset_enumeration import Played, best_unplayed


class UcbPolicy(ArrayState):
    """UCB over K-subsets, every arm once first."""

    name = "ucb"
    parts: ClassVar[tuple[str, ...]] = ("_slot", "_arms")
    needs: frozenset[str] = frozenset({OPINIONS})

    def __init__(
        self, *, clients_per_round: int = 5, mu: float = 1.0, slot_rounds: int = 1
    ) -> None:
        check_set(self.name, clients_per_round=clients_per_round, slot_rounds=slot_rounds, mu=mu)
        self._size = clients_per_round
        self._mu = mu
        self._slot = Slot(slot_rounds)
        self._arms = ArmTable(clients_per_round)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Continue the slot, or start a new arm, or the best of all."""
        there = candidates(view)
        notes = {"slot": float(self._slot.t)}
        clients = self._slot.running
        if not len(clients):
            clients = self._next(there, rng, notes)
        return explained(view, take(view, clients, self._size), notes=notes)

    def learn(self, feedback: Feedback) -> None:
        """Count the round; at the end of a slot, credit the arm that was played."""
        clients = self._slot.advance(feedback)
        self._arms.credit(clients, reward(feedback.opinions))

    def _next(
        self, there: BoolArray, rng: np.random.Generator, notes: dict[str, float]
    ) -> IntArray:
        clients = np.flatnonzero(there).astype(np.int64)
        if len(clients) <= self._size:
            return clients
        rows = np.flatnonzero(self._arms.inside(there)).astype(np.int64)
        total = math.comb(len(clients), self._size)
        notes["explore"] = float(len(rows) < total)
        if len(rows) < total:
            return self._unplayed(clients, len(rows), total, rng)
        index = self._arms.index(rows, self._mu, self._slot.t)
        notes["index"] = float(index.max())
        top = self._arms.arms[rows[index == index.max()]].tolist()
        return np.array(min(top), dtype=np.int64)

    def _unplayed(
        self, clients: IntArray, played: int, total: int, rng: np.random.Generator
    ) -> IntArray:
        """Draw uniformly among the arms of these clients that were never played."""
        if total > 2 * played:
            while True:  # at least every second draw is new
                arm = np.sort(rng.choice(clients, self._size, replace=False))
                if self._arms.row(arm) is None:
                    return arm
        skip = int(rng.integers(total - played))
        every = itertools.combinations(clients.tolist(), self._size)
        new = (arm for arm in every if self._arms.row(np.array(arm)) is None)
        return np.array(next(itertools.islice(new, skip, None)), dtype=np.int64)


_Exact = tuple[Scores, Played, IntArray]


class QuickInitUcbPolicy(UcbPolicy):
    """Quick-Init UCB with a small mu.

    A client that is not available, not visible or priced above an edge's budget is in no arm this
    round. Members that the budgets cannot pay together are dropped; credited is who really played.
    """

    name = "quick-init-ucb"
    parts = ("_slot", "_arms", "_cold")

    def __init__(
        self, *, clients_per_round: int = 5, mu: float = 0.01, slot_rounds: int = 1
    ) -> None:
        super().__init__(clients_per_round=clients_per_round, mu=mu, slot_rounds=slot_rounds)
        self._cold = ColdStart()
        self._cache: tuple[int, _Exact] | None = None

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Continue the slot, or start the cold start's next group, or the best arm."""
        there = candidates(view)
        notes = {"slot": float(self._slot.t), "cold": 0.0}
        if len(self._slot.running):
            return explained(view, take(view, self._slot.running, self._size), notes=notes)
        group = self._cold.draw(there, self._size, rng)
        if group is not None:
            notes["cold"] = 1.0
            return explained(view, take(view, group, self._size), notes=notes)
        exact = self._exact(len(there))
        best = self._best(there, exact, notes)
        scores = exact[0]
        pairs = take(view, best, self._size)
        return explained(view, pairs, scores.means[view.pair_client], notes)

    def learn(self, feedback: Feedback) -> None:
        """Count the round; at the end of a slot, credit the arm that was played."""
        clients = self._slot.advance(feedback)
        if not len(clients):
            return
        opinion = reward(feedback.opinions)
        if not self._cold.warm:
            there = candidates(feedback.view)
            if self._cold.learn(clients, opinion, there):
                self._arms.credit(clients, opinion)
                return
        if math.isnan(opinion) or len(clients) != self._size:
            return
        scores, played, ranked = self._exact(len(feedback.view.client_price))
        total = scores.totals(clients[np.newaxis])
        if self._arms.credit(clients, opinion, scores.mean(int(total[0]), self._size)):
            at = bisect_right(ranked, -total[0], key=lambda row: -played.totals[row])
            ranked = np.insert(ranked, at, len(played.totals))
            self._remember(scores, played.grown(self._arms.arms, scores.rank, total), ranked)

    def restored(self) -> None:
        """Forget what followed from the state before."""
        self._cache = None

    def _exact(self, total: int) -> _Exact:
        """Return the scores of `total` clients, the arms' exact sums, and their ranking."""
        self._arms.require_known(total)
        if self._cache is not None:
            version, exact = self._cache
            now = (self._cold.version, total, len(self._arms))
            if (version, len(exact[0].level), len(exact[2])) == now:
                return exact
        scores = self._cold.scores(total)
        totals = scores.totals(self._arms.arms)
        ranked = sorted(range(len(totals)), key=totals.tolist().__getitem__, reverse=True)
        played = Played.of(self._arms.arms, scores.rank, totals, self._arms.keys)
        return self._remember(scores, played, np.array(ranked, dtype=np.int64))

    def _remember(self, scores: Scores, played: Played, ranked: IntArray) -> _Exact:
        exact = scores, played, ranked
        self._cache = self._cold.version, exact
        return exact

    def _best(self, there: BoolArray, exact: _Exact, notes: dict[str, float]) -> IntArray:
        """Return the arm of the highest index, its clients by (-score, index)."""
        scores, played, ranked = exact
        line = scores.line(there)
        size, t = self._size, self._slot.t
        if len(line.clients) <= size:
            return line.clients
        inside = self._arms.inside(there)
        rows = ranked[inside[ranked]]
        new = best_unplayed(line, size, played, rows)
        options: list[tuple[float, int, bytes]] = []
        if new is not None:
            key = keys_of(new.clients[np.newaxis].astype(np.int32))[0]
            index = scores.mean(new.total, size) + self._mu * math.sqrt(math.log(t))
            options.append((-index, -new.total, key))
        if len(rows):
            known = self._arms.index(rows, self._mu, t)
            top = rows[known == known.max()]
            keys = keys_of(played.members[top])
            options += [
                (-float(known.max()), -int(total), key)
                for total, key in zip(played.totals[top], keys, strict=True)
            ]
        chosen = min(options)
        notes["index"], notes["explore"] = -chosen[0], float(chosen[2] not in played.keys)
        clients = np.frombuffer(chosen[2], dtype=">i4").astype(np.int64)
        return clients[np.argsort(scores.level[clients], kind="stable")]
