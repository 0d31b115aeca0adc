"""How far a client's updates are to be trusted: from 1, for all that is known, to 0.

A valid update is held against those of its edge in the same round (docs/robust.md): it is doubted
by as much as its norm is over twice the median, or the samples it claims over four times; wholly
if it is no longer than a hundredth of the median, or if its edge says that it is a copy, or points
elsewhere or against the others. Trust is a mean in which the newest update weighs a fifth; shown
with it is what a client claims of its speed: a claim gap of over 3 divides it.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median  # of so few faster than numpy's

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from fedagent_coordinator.policies.state import ArrayState, floats, grown
from fedagent_task.aggregation.alignment import DOUBTS

_NEWEST = 0.2
_FEWEST = 4
"""Of fewer nobody can tell what is usual."""
_LONG, _HEAVY, _IDLE, _SLOW = 2.0, 4.0, 0.01, 3.0
_SHOWN_BELOW = 0.999


class Trust(ArrayState):
    """The trust in every client."""

    name = "trust"
    _score = floats("clients", start=1.0, least=0)

    def of(self, clients: int, gaps: FloatArray | None = None) -> FloatArray:
        """Return the trust in each client, float64[N], by what its claims came to."""
        score = grown(self._score, clients, 1.0)
        if gaps is None:
            return score
        slow = np.where(np.isnan(gaps), 1.0, np.minimum(1.0, _SLOW / np.maximum(gaps, 1e-9)))
        known = np.ones(len(score))
        known[: len(slow)] = slow[: len(score)]
        return score * known

    def shown(self, view: RoundView, gaps: FloatArray) -> RoundView:
        """Return the view with the trust in its clients, if anybody is doubted."""
        trust = self.of(len(view.client_price), gaps)[: len(view.client_price)]
        return replace(view, trust=trust) if (trust < _SHOWN_BELOW).any() else view

    def learn(self, feedback: Feedback) -> None:
        """Learn from the valid updates of a round."""
        self.grow(clients=len(feedback.view.client_price))
        if feedback.evidence is None:
            return
        known = np.isfinite(feedback.evidence)
        clients = feedback.view.pair_client[feedback.pairs[known]]
        self._score[clients] += _NEWEST * (feedback.evidence[known] - self._score[clients])


def evidence(
    edge: IntArray,
    *,
    norm: FloatArray,
    samples: IntArray,
    reason: Sequence[str],
    valid: BoolArray,
) -> FloatArray:
    """Return how far each update is believed, float64[S]; NaN of those that are not valid."""
    found = np.where(valid, 1.0, np.nan)
    usual, heavy = np.full((2, len(found)), np.nan)
    norms, counts, by_edge = norm.tolist(), samples.tolist(), dict[int, list[int]]()
    for row, (place, known) in enumerate(zip(edge.tolist(), valid.tolist(), strict=True)):
        if known:
            by_edge.setdefault(place, []).append(row)
    for here in by_edge.values():
        lengths = [norms[row] for row in here if norms[row] > 0]
        # Where updates are masked or private, edges tell no norms.
        if len(here) >= _FEWEST and lengths:
            usual[here] = median(lengths)
            heavy[here] = median([float(counts[row]) for row in here])
    judged = ~np.isnan(usual)
    with np.errstate(over="ignore"):
        by_length = _LONG * usual[judged] / np.maximum(norm[judged], 1e-300)
        by_samples = _HEAVY * heavy[judged] / np.maximum(samples[judged], 1.0)
    found[judged] = np.minimum(1.0, np.minimum(by_length, by_samples))
    found[judged & (norm <= _IDLE * usual)] = 0.0
    doubted = np.array([one in DOUBTS for one in reason], dtype=np.bool_)
    found[valid & doubted] = 0.0
    return found
