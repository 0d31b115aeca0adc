"""What clients claim of their compute and links, against what their edges observe of it.

ALGORITHMS section 8. The claim gap of a client is what its updates took by the edge's clock over
what they should have taken by its own claims, 1 if it keeps to them:

    claimed = 8 w / download + 8 w / upload + rtt + q / compute

with w the bytes of the model, each claim that of the view in which the client was chosen, and q
the work of a round: the median over the clients of a round of what their claims leave for
computation, (tau - transfers) compute, over rounds as below. A client is compared with the others
by its compute, and with the clock by its links. Only valid updates count, late ones too, and a
claim that is not above 0 is none. Gaps and work are means of logarithms in which a new value
weighs a fifth.
"""

from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies.base import (
    CLAIM_GAP,
    Feedback,
    FloatArray,
    IntArray,
    RoundView,
)
from fedagent_coordinator.policies.state import ArrayState, floats, grown

_NEWEST = 0.2
_MOST = 1e3
"""No gap is larger, or smaller than one over this."""


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
        valid = ~feedback.void & ~feedback.censored
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
