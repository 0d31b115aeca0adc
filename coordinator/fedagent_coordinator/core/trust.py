"""What is learnt of clients and edges whatever the policy: claims, trust, rents for nothing.

What clients claim of their compute and links is held against what their edges observe
(ALGORITHMS section 8). The claim gap of a client is what its updates took by the edge's clock over
what they should have taken by its own claims, 1 if it keeps to them:

    claimed = 8 w / download + 8 w / upload + rtt + q / compute

with w the bytes of the model, each claim that of the view in which the client was chosen, and q
the work of a round: the median over the clients of a round of what their claims leave for
computation, (tau - transfers) compute, over rounds as below. A client is compared with the others
by its compute, and with the clock by its links. Only valid updates count, late ones too, and a
claim that is not above 0 is none. Gaps and work are means of logarithms in which a new value
weighs a fifth.

Trust goes from 1, for all that is known, to 0. A valid update is held against those of its edge
in the same round (docs/robust.md): it is doubted by as much as its norm is over twice the median,
or the samples it claims over four times; wholly if it is no longer than a hundredth of the median,
or if its edge says that it is a copy, or points elsewhere or against the others. Trust is a mean
in which the newest update weighs a fifth; shown with it is what a client claims of its speed: a
claim gap of over 3 divides it.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median  # of so few faster than numpy's

import numpy as np

from fedagent_coordinator.placement.base import Placement
from fedagent_coordinator.policies.base import (
    CLAIM_GAP,
    BoolArray,
    Feedback,
    FloatArray,
    IntArray,
    RoundView,
)
from fedagent_coordinator.policies.state import ArrayState, floats, grown, ints
from fedagent_task.aggregation.alignment import DOUBTS

_NEWEST = 0.2
_MOST = 1e3
"""No gap is larger, or smaller than one over this."""
_FEWEST = 4
"""Of fewer nobody can tell what is usual."""
_LONG, _HEAVY, _IDLE, _SLOW = 2.0, 4.0, 0.01, 3.0
_SHOWN_BELOW = 0.999
MAX_TURNS = 32
"""Rounds for which a rented edge is passed over at most."""


class ClaimGaps(ArrayState):
    """The claim gap of every client."""

    name = "claims"
    _log_gap = floats("clients", start=np.nan, nan=True)
    _log_work = floats(1, start=np.nan, nan=True)

    def of(self, clients: int) -> FloatArray:
        """Return each client's gap, float64[N]; NaN where no valid update could be compared."""
        return np.exp(grown(self._log_gap, clients, np.nan))

    def shown(self, view: RoundView) -> RoundView:
        """Return the view with the gaps as a feature, whatever agents say under its name."""
        kept = [i for i, name in enumerate(view.feature_names) if name != CLAIM_GAP]
        gaps = self.of(len(view.client_price))[view.pair_client].astype(np.float32)
        return replace(
            view,
            feature_names=(*(view.feature_names[i] for i in kept), CLAIM_GAP),
            pair_features=np.column_stack((view.pair_features[:, kept], gaps)),
        )

    def learn(self, feedback: Feedback) -> None:
        """Compare the valid updates of a round."""
        valid = ~feedback.unpaid & ~feedback.censored
        view, rows, tau = feedback.view, feedback.pairs[valid], feedback.tau_s[valid]
        self.grow(clients=len(view.client_price))
        if not view.model_bytes or not len(tau):
            return
        transfers, compute = _transfers(view, rows), _claimed(view, "compute", rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            work = (tau - transfers) * compute
            work = work[np.isfinite(work) & (work > 0)]
            if len(work):
                self._log_work = _moved(self._log_work, np.log([np.median(work)]))
            claimed = transfers + np.exp(self._log_work) / compute
            log = np.log(np.clip(tau / claimed, 1 / _MOST, _MOST))
        known = np.isfinite(log)
        clients = view.pair_client[rows[known]]
        self._log_gap[clients] = _moved(self._log_gap[clients], log[known])


def _moved(old: FloatArray, new: FloatArray) -> FloatArray:
    return np.where(np.isnan(old), new, old + _NEWEST * (new - old))


def _transfers(view: RoundView, rows: IntArray) -> FloatArray:
    """Return what these pairs claim both transfers to take, float64[R]; an unknown rate is NaN.

    Where only one rate is claimed, it stands for both.
    """
    down, up = _claimed(view, "download_bps", rows), _claimed(view, "upload_bps", rows)
    down, up = np.where(np.isnan(down), up, down), np.where(np.isnan(up), down, up)
    seconds = 8.0 * view.model_bytes * (1.0 / down + 1.0 / up)
    return np.asarray(seconds + np.nan_to_num(_claimed(view, "rtt_s", rows)), dtype=np.float64)


def _claimed(view: RoundView, name: str, rows: IntArray) -> FloatArray:
    """Return a claim of these pairs, float64[R]; NaN where there is none that can be true."""
    column = view.optional(name)[rows]
    return np.where(column > 0, column, np.nan)


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


class EdgeBackoff(ArrayState):
    """Which edges are passed over, as the rounds that they were rented for brought no update.

    One such round may be bad luck, or its work may still be on its way. From the second in a row on
    an edge is passed over for one round, then for two, four, and so on; after one that brought an
    update it is back. Counted in rounds, and learnt from what the books keep of them: a restart
    passes over the same edges.
    """

    name = "backoff"
    _empty = ints("edges")
    _until = ints("edges")

    def learn(self, placement: Placement, feedback: Feedback) -> None:
        """Take in what the round of a rented edge brought."""
        edge = placement.edge
        if edge is None:
            return
        self.grow(edges=edge + 1)
        if feedback.used.any():
            self._empty[edge] = self._until[edge] = 0
            return
        turns = min((1 << int(self._empty[edge])) // 2, MAX_TURNS)
        self._empty[edge] += 1
        self._until[edge] = feedback.view.round + 1 + turns

    def away(self, round_: int, edges: int) -> BoolArray:
        """Return bool[M], the edges that are passed over in a round."""
        return np.asarray(grown(self._until, edges) > round_, dtype=np.bool_)
