"""What is learnt of clients and edges whatever the policy: claims, trust, rents for nothing.

What clients claim of their compute and links is held against what their edges observe
(ALGORITHMS section 8). The claim gap of a client is what its updates took by the edge's clock over
what they should have taken by its own claims, 1 if it keeps to them:

    claimed = 8 w / download + 8 w / upload + rtt + q / compute

with w the bytes of the model, each claim that of the view in which the client was chosen, and q
the work of a round: the median over the clients of a round of what their claims leave for
computation, (tau - transfers) compute, over rounds as below. A client is compared with the others
by its compute, and with the clock by its links. Only valid updates count, late ones too, and a
claim that is not above 0 is none. Gaps are means of logarithms that begin at a gap of 1 and in
which a new value weighs a fifth: one slow round, of a device that has just started, is no liar's.
A gap lowers no trust: who is late is known by its forecasts.

Trust goes from 1, for all that is known, to 0. A valid update is held against those of its edge
in the same round (docs/robust.md): it is doubted if its norm is over ten times the median, or the
samples it claims over a hundred times, and over what such a fleet is spread; wholly if it is no
longer than a hundredth of the median, or if its edge says that it is a copy, or points elsewhere
or against the others. Trust is a mean in which the newest update weighs a fifth.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

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
from fedagent_task.aggregation.alignment import DOUBTS, FEWEST, UNLIKE

_NEWEST = 0.2
_MOST = 1e3
"""No gap is larger, or smaller than one over this."""
_LONG, _HEAVY, _IDLE = (2.0, 10.0), (4.0, 100.0), 0.01
"""Multiples of the median up to which a norm and a claim of samples are believed, and from which
on they are doubted at all: honest devices differ, and what is long or heavy is bounded anyway."""
_SPREADS = 3.0
"""What is within so many spreads (1.48 MAD of the logarithms) is usual in its fleet too."""
DOUBTED = 0.999
"""Trust from which a client is not doubted."""
MAX_TURNS = 32
"""Rounds for which a rented edge is passed over at most."""


class Trust(ArrayState):
    """The trust in every client, and its claim gap."""

    name = "trust"
    _score = floats("clients", start=1.0, least=0)
    _log_gap = floats("clients", start=np.nan, nan=True)
    _log_work = floats(1, start=np.nan, nan=True)

    def of(self, clients: int) -> FloatArray:
        """Return the trust in each client, float64[N]."""
        return grown(self._score, clients, 1.0)

    def gaps(self, clients: int) -> FloatArray:
        """Return each client's gap, float64[N]; NaN where no valid update could be compared."""
        return np.exp(grown(self._log_gap, clients, np.nan))

    def seen(self, view: RoundView, needs: frozenset[str]) -> RoundView:
        """Return the view with the trust in its clients, if anybody is doubted, and the gaps.

        These are a feature for policies that need it, whatever agents say under its name.
        """
        trust = self.of(len(view.client_price))[: len(view.client_price)]
        if (trust < DOUBTED).any():
            view = replace(view, trust=trust)
        if CLAIM_GAP not in needs:
            return view
        kept = [i for i, name in enumerate(view.feature_names) if name != CLAIM_GAP]
        gaps = view.of_client(self.gaps(len(view.client_price))).astype(np.float32)
        return replace(
            view,
            feature_names=(*(view.feature_names[i] for i in kept), CLAIM_GAP),
            pair_features=np.column_stack((view.pair_features[:, kept], gaps)),
        )

    def learn(self, feedback: Feedback) -> None:
        """Learn from the valid updates of a round."""
        view = feedback.view
        self.grow(clients=len(view.client_price))
        if feedback.evidence is not None:
            known = np.isfinite(feedback.evidence)
            clients = view.pair_client[feedback.pairs[known]]
            self._score[clients] += _NEWEST * (feedback.evidence[known] - self._score[clients])
        valid = ~feedback.unpaid & ~feedback.censored
        rows, tau = feedback.pairs[valid], feedback.tau_s[valid]
        if not view.model_bytes or not len(tau):
            return
        transfers, compute = _transfers(view, rows), _claimed(view, "compute", rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            work = (tau - transfers) * compute
            work = work[np.isfinite(work) & (work > 0)]
            if len(work):
                newest, before = np.log([np.median(work)]), self._log_work
                moved = before + _NEWEST * (newest - before)
                self._log_work = np.where(np.isnan(before), newest, moved)
            claimed = transfers + np.exp(self._log_work) / compute
            log = np.log(np.clip(tau / claimed, 1 / _MOST, _MOST))
        known = np.isfinite(log)
        clients = view.pair_client[rows[known]]
        before = np.nan_to_num(self._log_gap[clients])
        self._log_gap[clients] = before + _NEWEST * (log[known] - before)


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
    for place in np.unique(edge[valid]).tolist():
        here = np.flatnonzero(valid & (edge == place))
        # Where updates are masked or private, edges tell no norms.
        if len(here) < FEWEST or not (norm[here] > 0).any():
            continue
        usual = _median(norm[here][norm[here] > 0])
        idle = norm[here] <= _IDLE * usual
        found[here] = np.minimum(_within(norm[here], _LONG), _within(samples[here], _HEAVY))
        found[here[idle]] = 0.0
    for row, why in enumerate(reason):
        if why in DOUBTS and valid[row]:
            found[row] = 0.0
        elif why == UNLIKE:  # it tells nothing, neither for nor against
            found[row] = np.nan
    return found


def _within(values: FloatArray | IntArray, limits: tuple[float, float]) -> FloatArray:
    """Return how far each value, float64[K], is believed: 1, or its share of the first limit."""
    ratio = np.maximum(values, 1e-9) / max(_median(values), 1e-9)
    with np.errstate(over="ignore"):
        spread = np.exp(_SPREADS * 1.4826 * _median(np.abs(np.log(ratio))))
    least, most = limits
    return np.where(ratio > max(most, spread), least / ratio, 1.0)


def _median(values: FloatArray | IntArray) -> float:
    """Return what `np.median` does, which takes three times as long for the few of an edge."""
    line = np.sort(values)  # NaN comes last
    middle = line[(len(line) - 1) // 2 : len(line) // 2 + 1]
    return math.nan if np.isnan(line[-1]) else float(middle.mean())


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
