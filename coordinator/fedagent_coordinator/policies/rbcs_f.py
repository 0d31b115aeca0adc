"""`rbcs-f`: fast and fair by Lyapunov queues and a linear bandit (ALGORITHMS section 4).

Every client has a queue of the rounds it is owed (`queues`) and a regression of its
exchange time (`exchange_time`). Each round takes the set of least
V max(tau) - sum(Z), solved exactly (`fair_set`). With V = 0 only the queues count;
the larger V, the longer the queues get before they do.

Parameters: docs/policies/rbcs-f.md.
"""

import math

import numpy as np

from fedagent_protocol.parameters import require

from .base import Feedback, FloatArray, IntArray, RoundView, Selection
from .exchange_time import ExchangeTimes, affordable, min_per_client
from .fair_set import fair_set
from .queues import FairnessQueues
from .selection import explained, fill
from .state import ArrayState


class RbcsFPolicy(ArrayState):
    """RBCS-F.

    A client that sees several edges counts with the least of their times; if that
    edge's budget is used up, the next is tried. A set that does not fit the budgets
    loses what does not fit, the shortest queues first; clients that no edge could pay
    even alone are left out before.


    Raises:
        ParameterError: A parameter is out of range; from the first `select`, `beta`
            asks for more clients than m or the budgets let in.
    """

    name = "rbcs-f"
    parts = ("_queues", "_times")

    def __init__(
        self,
        *,
        V: float = 5.0,  # noqa: N803 - the paper's name, and the recipe's
        beta: float = 0.15,
        clients_per_round: int = 8,
        lambda_: float = 1.0,
        alpha: float = 0.1,
        freeze_after: int = 50,
        compute: str = "compute",
        bandwidth: str = "upload_bps",
        model_bits: float = 20e6,
        deadline_s: float | None = None,
    ) -> None:
        require(self.name, "V", V, 0 <= V < math.inf, ">= 0")
        require(self.name, "clients_per_round", clients_per_round, clients_per_round >= 1, ">= 1")
        self._v, self._clients_per_round = V, clients_per_round
        self._queues = FairnessQueues(self.name, beta=beta, freeze_after=freeze_after)
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
        """Solve P4; the score of a pair is Z - V tau."""
        self._queues.require_room(view, self._clients_per_round)
        tau = self._times.lower_bound(view)
        queue = self._queues.lengths(len(view.client_price))
        rows = affordable(view)
        fastest = min_per_client(view, tau, rows)
        there = np.flatnonzero(np.isfinite(fastest))
        k = min(self._clients_per_round, len(there))
        members = there[fair_set(fastest[there], queue[there], k, self._v, rng)]
        members = members[np.lexsort((fastest[members], -queue[members]))]
        pairs = fill(view, _pairs_of(view, members, tau, rows, rng))
        notes = {
            "queue_max": float(queue.max(initial=0.0)),
            "queue_mean": float(queue.mean()) if len(queue) else 0.0,
            "tau_max_s": float(tau[pairs].max(initial=0.0)),
            "dropped": float(k - len(pairs)),
            "over_capacity": float(
                self._queues.over_capacity(view, self._clients_per_round, len(pairs))
            ),
        }
        return explained(view, pairs, queue[view.pair_client] - self._v * tau, notes)

    def learn(self, feedback: Feedback) -> None:
        """Learn the times, then move the queues."""
        self._times.learn(feedback)
        self._queues.step(feedback)


def _pairs_of(
    view: RoundView,
    members: IntArray,
    tau: FloatArray,
    rows: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """Return the members' pairs among `rows`: by member, then by time, ties by chance."""
    place = np.full(len(view.client_price), len(members), dtype=np.int64)
    place[members] = np.arange(len(members))
    mine = rows[place[view.pair_client[rows]] < len(members)]
    order = np.lexsort((rng.random(len(mine)), tau[mine], place[view.pair_client[mine]]))
    return mine[order]
