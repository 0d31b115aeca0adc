"""`rbcs-f`: fast and fair by Lyapunov queues and a linear bandit (ALGORITHMS section 4).

Each round takes the set of least V max(tau) - sum(Z), solved exactly (`fair_set`, Algorithm 1),
with tau from `fastest`. A queue is how far behind its guaranteed share a client is (RBCS-F eq. 6):
Z <- max(Z + beta - x, 0) in every round, also while the client is unavailable; after
`freeze_after` rounds without a session it stands still. Page: docs/policies/rbcs-f.md.
"""

import heapq
import math

import numpy as np

from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import require

from .base import Aspects, BoolArray, Feedback, FloatArray, IntArray, RoundView, Selection
from .fastest import ExchangeTimes, affordable, min_per_client
from .selection import explained, fill
from .state import ArrayState, floats, grown, ints


class FairnessQueues(ArrayState):
    """Queues of all clients ever seen; `beta` is the least share of rounds of each."""

    _queue = floats("clients", least=0)
    _idle = ints("clients")

    def __init__(self, name: str, *, beta: float, freeze_after: int) -> None:
        require(name, "beta", beta, 0 <= beta < 1, "in [0, 1)")
        require(name, "freeze_after", freeze_after, freeze_after >= 1, ">= 1")
        self._policy, self._beta, self._freeze_after = name, beta, freeze_after

    def lengths(self, clients: int) -> FloatArray:
        """Return Z of this many clients, float64[N]; new ones have 0."""
        return grown(self._queue, clients)

    def due(self, view: RoundView) -> int:
        """Return beta N, rounded up, where N counts the clients whose queues run."""
        idle = np.where(_seen(view), 0, grown(self._idle, len(view.client_price)) + 1)
        return self._owed(int((idle <= self._freeze_after).sum()))

    def over_capacity(self, view: RoundView, most: int | None, taken: int) -> bool:
        """Return whether a round that took so many owes more than it could (`capacity`)."""
        due = self.due(view)
        return due > taken and due > capacity(view, most)

    def require_room(self, view: RoundView, clients_per_round: int) -> None:
        """Refuse a share that rounds like a run's first cannot give to all that can be chosen.

        Who is dearer than every edge's budget cannot, who is only away now can. Later rounds are
        not refused: a new client or a higher price must not end a run. Nor is one that can take
        no client: that is not the parameters' fault.
        """
        room = capacity(view, clients_per_round)
        payable = view.pair_price <= view.edge_budget[view.pair_edge]
        clients = len(np.unique(view.pair_client[payable]))
        due = self._owed(clients)
        if len(self._queue) or not room or due <= room:
            return
        limit, hint = "take part", "raise clients_per_round"
        if room < clients_per_round:
            limit, hint = "can be paid", "raise the edges' budgets"
        raise ParameterError(
            self._policy,
            "beta",
            f"is {self._beta}: it owes {due} of {clients} clients a round and only {room} {limit};"
            f" lower beta or {hint}",
        )

    def step(self, feedback: Feedback) -> None:
        """Close a round: everybody ordered counts as taking part, in time or not."""
        view, clients = feedback.view, len(feedback.view.client_price)
        self._idle = np.where(_seen(view), 0, grown(self._idle, clients) + 1)
        took_part = np.zeros(clients)
        took_part[view.pair_client[feedback.pairs]] = 1.0
        queue = self.lengths(clients)
        moved = np.maximum(queue + self._beta - took_part, 0.0)
        self._queue = np.where(self._idle <= self._freeze_after, moved, queue)

    def _owed(self, running: int) -> int:
        return math.ceil(self._beta * running - 1e-9)


def capacity(view: RoundView, most: int | None = None) -> int:
    """Return how many clients a round can take at most, if everybody were available.

    Never less than the truth: the cheapest clients are filled into the edges' budgets,
    once edge by edge as if no client were seen twice, once as if the edges had one purse.
    `most` is the policy's own limit, m.
    """
    rows = np.flatnonzero(view.pair_price <= view.edge_budget[view.pair_edge])
    edge, price = view.pair_edge[rows], view.pair_price[rows]
    order = np.lexsort((price, edge))
    ends = np.searchsorted(edge[order], np.arange(1, len(view.edge_budget) + 1))
    purses = zip(np.split(price[order], ends), view.edge_budget.tolist(), strict=False)
    apart = sum(_paid(ascending, budget) for ascending, budget in purses)
    clients, first = np.unique(view.pair_client[rows], return_index=True)
    together = _paid(np.sort(price[first]), sum(view.edge_budget.tolist()))
    return min(apart, together, len(clients) if most is None else most)


def _paid(price: IntArray, budget: int) -> int:
    # As floats, which are exact up to any edge's budget: sums of integers could overflow.
    return int(np.searchsorted(np.cumsum(price, dtype=np.float64), budget, side="right"))


def fair_set(
    tau: FloatArray,
    queue: FloatArray,
    k: int,
    V: float,  # noqa: N803 - the paper's name
    rng: np.random.Generator,
) -> IntArray:
    """Return an optimal set of k clients, int64[k], in no particular order.

    Walk by rising tau: the best set whose slowest client is the p-th holds the k largest Z of the
    first p. Of clients with equal queues the faster one is taken, of those that are equal in both
    any, by `rng`. `tau` in seconds and `queue` are finite.
    """
    if k == 0:
        return np.empty(0, dtype=np.int64)
    client = rng.permutation(len(tau))
    client = client[np.argsort(tau[client], kind="stable")]
    delay, z = (V * tau[client]).tolist(), queue[client]
    lengths = z.tolist()
    largest = lengths[:k]
    heapq.heapify(largest)
    served = sum(largest)
    best, prefix = delay[k - 1] - served, k
    for p in range(k, len(lengths)):
        if lengths[p] > largest[0]:
            served += lengths[p] - heapq.heapreplace(largest, lengths[p])
            if delay[p] - served < best:
                best, prefix = delay[p] - served, p + 1
    z = z[:prefix]
    least = np.partition(z, prefix - k)[prefix - k]
    above = np.flatnonzero(z > least)
    level = np.flatnonzero(z == least)[: k - len(above)]
    return client[np.concatenate((above, level))].astype(np.int64)


def _seen(view: RoundView) -> BoolArray:
    seen = np.zeros(len(view.client_price), dtype=np.bool_)
    seen[view.pair_client] = True
    return seen


class RbcsFPolicy(ArrayState):
    """RBCS-F.

    A client that sees several edges counts with the least of their times; if that
    edge's budget is used up, the next is tried. A set that does not fit the budgets
    loses what does not fit, the shortest queues first.

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
        model_bits: float | None = None,
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

    def aspects(self, view: RoundView) -> Aspects:
        """Return the fairness queue and the estimated time, whose difference is the score."""
        queue = self._queues.lengths(len(view.client_price))
        tau = self._times.lower_bound(view)
        return {"queue": queue[view.pair_client], "estimated seconds": tau}

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
