"""`fastest`: the clients of least expected exchange time, fair or not.

RBCS-F without its queues (ALGORITHMS section 4): the same regression and the same
optimism, so a client never tried counts as fast until it is.

Parameters: docs/policies/fastest.md.
"""

import numpy as np

from fedagent_protocol.parameters import require

from .base import Feedback, RoundView, Selection
from .exchange_time import ExchangeTimes, affordable, min_per_client
from .selection import explained, fill
from .state import ArrayState


class FastestPolicy(ArrayState):
    """Take the m clients of least estimated time that the budgets pay for."""

    name = "fastest"
    parts = ("_times",)

    def __init__(
        self,
        *,
        clients_per_round: int = 8,
        lambda_: float = 1.0,
        alpha: float = 0.1,
        compute: str = "compute",
        bandwidth: str = "upload_bps",
        model_bits: float = 20e6,
        deadline_s: float | None = None,
    ) -> None:
        require(self.name, "clients_per_round", clients_per_round, clients_per_round >= 1, ">= 1")
        self._clients_per_round = clients_per_round
        self._times = ExchangeTimes(
            self.name,
            lambda_=lambda_,
            alpha=alpha,
            model_bits=model_bits,
            compute=compute,
            bandwidth=bandwidth,
            deadline_s=deadline_s,
        )

    @property
    def needs(self) -> frozenset[str]:
        """The compute and the bandwidth feature."""
        return self._times.needs

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its estimated time."""
        tau = self._times.lower_bound(view)
        rows = affordable(view)
        least = min_per_client(view, tau, rows)[view.pair_client[rows]]
        order = np.lexsort((rng.random(len(rows)), tau[rows], least))
        pairs = fill(view, rows[order])[: self._clients_per_round]
        notes = {"tau_max_s": float(tau[pairs].max(initial=0.0))}
        return explained(view, pairs, -tau, notes)

    def learn(self, feedback: Feedback) -> None:
        """Learn the times."""
        self._times.learn(feedback)
