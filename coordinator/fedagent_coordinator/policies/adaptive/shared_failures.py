"""Failures that devices share: a bad round (a cold start, a storm), or a bad edge.

In a round everybody's chance is multiplied by a level, and at each edge by another; what the
levels were is inferred from the outcomes of all orders at once, so that a device is not charged
for what befell everybody. A cause that lasts is no excuse: the more bad rounds there were
lately, the more of a failure is charged to the devices again.
"""

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats

_LEVELS = np.array([1.0, 0.3, 0.02])
"""What a good, a bad and a lost round (or edge) leaves of every chance."""
_BOTH = _LEVELS[:, None] * _LEVELS  # of a round's and an edge's
_FIRST_SHARES = np.array([0.97, 0.015, 0.015])
"""How frequent the levels are taken to be at first: bad ones are rare until they are seen."""
USUALLY_LEFT = float(_FIRST_SHARES @ _LEVELS) ** 2
"""What common causes leave of a chance before anything is known."""
_STRENGTH = 6.0
"""Rounds that the first guess counts for."""
_KEEP = 0.98
"""What a round leaves of the counts of levels: 50 rounds count."""
_RECENT = 0.9
"""Likewise of how bad the last rounds were, on which excuses run out: 10 rounds."""
_EDGES_BLAME = 0.3
"""Share of an edge's lasting badness that is charged to its devices all the same."""


class SharedFailures(ArrayState):
    """How frequent bad rounds and bad edges are."""

    rounds = floats(len(_LEVELS), start=_FIRST_SHARES * _STRENGTH, least=0)
    edges = floats("edges", len(_LEVELS), start=_FIRST_SHARES * _STRENGTH, least=0)
    bad_rounds = floats(1, least=0)
    bad_edges = floats("edges", least=0)

    def factor(self, edge: IndexArray, total: int) -> FloatArray:
        """Return float64[R], what to multiply the chances of pairs at these edges by."""
        counts = self.edges
        shares = np.full((total, len(_LEVELS)), _FIRST_SHARES)
        shares[: len(counts)] = (counts / counts.sum(axis=1, keepdims=True))[:total]
        usual = self.rounds / self.rounds.sum() @ _LEVELS
        left: FloatArray = shares @ _LEVELS * usual
        return left[edge.astype(np.intp)]

    def learn(
        self,
        edge: IndexArray,
        chance: FloatArray,
        success: BoolArray,
        silent: BoolArray,
        total: int,
    ) -> FloatArray:
        """Return float64[S], what was left of each order's chance of success, and learn.

        `chance` is of a good round at a good edge; a `silent` edge failed or did not report.
        """
        self.grow(edges=total)
        if not len(edge):
            return np.ones(0)
        ordered = np.bincount(edge, minlength=total) > 0
        at, local = ordered.nonzero()[0], (ordered.cumsum() - 1)[edge]
        joint = self._joint(at, local, chance, success, silent)
        # One edge, or one order: nothing tells its cause from the round's, or the device's.
        by_round = joint.sum(axis=(1, 2)) / joint.sum()
        by_edge = joint.sum(axis=0)
        by_edge = by_edge / by_edge.sum(axis=1, keepdims=True)
        each = joint / joint.sum(axis=(0, 2), keepdims=True)
        quality = (each * _BOTH[:, None, :]).sum(axis=(0, 2))
        excused = np.maximum(quality, self.bad_rounds[0])
        excused = np.maximum(excused, _EDGES_BLAME * self.bad_edges[at])
        self._count(at, by_round, by_edge)
        lonely = len(edge) == 1
        left = np.ones(len(edge)) if lonely else excused[local]
        return np.where(silent, 0.0, left)

    def _joint(
        self,
        at: IntArray,
        local: IntArray,
        chance: FloatArray,
        success: BoolArray,
        silent: BoolArray,
    ) -> FloatArray:
        """Return float64[round levels, edges, edge levels], joint for one edge at a time."""
        size = len(_LEVELS)
        left = _BOTH.reshape(-1, 1) * chance
        fit = np.where(success, np.log(left), np.log1p(-np.minimum(left, 1 - 1e-9)))
        quiet = silent.any()
        if quiet:
            fit[:, silent] = 0.0
        levels = len(at) * np.arange(len(fit))[:, None]
        logs = np.bincount((levels + local).ravel(), fit.ravel(), len(fit) * len(at))
        logs = logs.reshape(size, size, len(at)).transpose(0, 2, 1)
        shares = self.edges[at] / self.edges[at].sum(axis=1, keepdims=True)
        if len(at) == 1:
            shares = np.eye(1, size)
        logs = logs + np.log(np.maximum(shares, 1e-12))
        if quiet:
            logs[:, np.bincount(local, silent, len(at)) > 0, :-1] = -1e9
        top = logs.max(axis=2, keepdims=True)
        each = np.exp(logs - top)
        by_round = np.log(self.rounds / self.rounds.sum())
        by_round = by_round + (top[:, :, 0] + np.log(each.sum(axis=2))).sum(axis=1)
        weight = np.exp(by_round - by_round.max())
        within = each / each.sum(axis=2, keepdims=True)
        return np.asarray(weight[:, None, None] / weight.sum() * within, dtype=np.float64)

    def _count(self, at: IntArray, by_round: FloatArray, by_edge: FloatArray) -> None:
        first = _FIRST_SHARES * _STRENGTH
        self.rounds = first + _KEEP * (self.rounds - first) + by_round
        self.bad_rounds = _RECENT * self.bad_rounds + (1 - _RECENT) * (1 - by_round[0])
        if len(at) > 1:
            self.edges[at] = first + _KEEP * (self.edges[at] - first) + by_edge
            moved = (1 - _RECENT) * (1 - by_edge[:, 0])
            self.bad_edges[at] = _RECENT * self.bad_edges[at] + moved
