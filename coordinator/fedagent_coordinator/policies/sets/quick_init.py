"""`quick-init-ucb`: Quick-Init UCB over K-subsets (GDA, Algorithm 1; ALGORITHMS section 5).

An arm's index is its mean reward + mu sqrt(ln t / count); one that was never played has the
mean of its members' scores (`cold_start`) as its mean, and count 1. The choices are exactly
those of the algorithm that enumerates C(N, K) arms; ties go to the larger exact sum of
members' scores, then to the smaller ascending client tuple. Page: docs/policies/quick-init-ucb.md.
"""

import math
from bisect import bisect_right

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, Feedback, IntArray, RoundView, Selection
from fedagent_coordinator.policies.selection import explained

from .arms import candidates, keys_of, reward, take
from .first_groups import ColdStart, Scores
from .subset_enumeration import Played, best_unplayed
from .ucb import UcbPolicy

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
