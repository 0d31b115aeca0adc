"""What a client's model exchange will take, one ridge regression per client; and `fastest`.

tau = theta . [1/mu, s, M/B] + noise (ALGORITHMS section 4): mu the available CPU
ratio, s = 1 for a client that did not take part in the last round, M the model in
bits, B the bandwidth. The regressions are those of `linucb`. `fastest` is RBCS-F
without its queues: docs/policies/baselines.md.
"""

import math
from functools import partial

import numpy as np

from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import require

from .base import Aspects, Feedback, FloatArray, IntArray, RoundView, Selection
from .linucb import MIN_RIDGE, LinearArms
from .selection import explained, fill
from .state import ArrayState, bools, grown

PAPER_BITS = 20e6
"""M of RBCS-F section 6.1, for rounds of an unknown model."""

_D = 3
_MAX_CONTEXT = 1e4
"""A context entry stops here: beyond hours, or a hundredth of a percent of a CPU,
contexts no longer differ, and H^-1 keeps half of its digits."""


class ExchangeTimes(ArrayState):
    """The regression as policies use it: contexts from a view, answers from feedback.

    `compute` names the feature with mu, `bandwidth` that with B; with bit/s, M/B is seconds and
    theta a factor. `model_bits` is M; None takes the round's model. `deadline_s` is what an
    exchange that did not come in time took at least; None takes the round's deadline, where it
    has one.
    """

    parts = ("_model",)
    _warm = bools("clients")

    def __init__(
        self,
        name: str,
        *,
        lambda_: float,
        alpha: float,
        model_bits: float | None,
        compute: str,
        bandwidth: str,
        deadline_s: float | None,
    ) -> None:
        check = partial(require, name)
        check("lambda_", lambda_, lambda_ >= MIN_RIDGE, f">= {MIN_RIDGE:g}")
        check("model_bits", model_bits, model_bits is None or 0 < model_bits < math.inf, "> 0")
        check("deadline_s", deadline_s, deadline_s is None or 0 < deadline_s < math.inf, "> 0")
        check("alpha", alpha, 0 <= alpha < math.inf, ">= 0")
        if compute == bandwidth:
            raise ParameterError(name, "bandwidth", f"is {bandwidth!r}, as compute is")
        self._alpha, self._model_bits = alpha, model_bits
        self._compute, self._bandwidth = compute, bandwidth
        self._deadline_s = deadline_s
        self._model = LinearArms(_D, lambda_)

    @property
    def needs(self) -> frozenset[str]:
        """The two features that contexts are made of."""
        return frozenset((self._compute, self._bandwidth))

    def lower_bound(self, view: RoundView) -> FloatArray:
        """Return the optimistic exchange time of every pair, seconds, float64[P]."""
        model, clients = (
            self._model.grown(len(view.client_price)),
            view.pair_client.astype(np.int64),
        )
        return np.maximum(model.upper(clients, self.contexts(view), -self._alpha), 0.0)

    def contexts(self, view: RoundView) -> FloatArray:
        """Return [1/mu, s, M/B] of every pair, float64[P, 3], entries in [0, 1e4]."""
        warm = grown(self._warm, len(view.client_price))
        context = np.empty((len(view.pair_client), _D))
        context[:, 0] = _ratio(1.0, view.feature(self._compute))
        context[:, 1] = ~warm[view.pair_client]
        context[:, 2] = _ratio(self._bits(view), view.feature(self._bandwidth))
        return context

    def learn(self, feedback: Feedback) -> None:
        """Learn from all ordered pairs; what came late or never took max(waited, deadline)."""
        view, clients = feedback.view, len(feedback.view.client_price)
        played = view.pair_client[feedback.pairs].astype(np.int64)
        context = self.contexts(view)[feedback.pairs]
        late = np.maximum(feedback.tau_s, self._late_after(view))
        self._model.grow(arms=clients)
        self._model.learn(played, context, np.where(feedback.X, feedback.tau_s, late))
        self._warm = np.zeros(clients, dtype=np.bool_)
        self._warm[played] = True

    def _bits(self, view: RoundView) -> float:
        """Return M: what was given, or what the round says, or the paper's where it does not."""
        if self._model_bits is not None:
            return self._model_bits
        return 8.0 * view.model_bytes if view.model_bytes > 0 else PAPER_BITS

    def _late_after(self, view: RoundView) -> float:
        if self._deadline_s is not None:
            return self._deadline_s
        return view.deadline_s if math.isfinite(view.deadline_s) else 0.0


def min_per_client(view: RoundView, value: FloatArray, rows: IntArray) -> FloatArray:
    """Return each client's least value over these pairs, float64[N]; inf where it has none."""
    least = np.full(len(view.client_price), np.inf)
    np.minimum.at(least, view.pair_client[rows], value[rows])
    return least


def affordable(view: RoundView) -> IntArray:
    """Return the pairs that could be chosen if nothing else were, int64[K]."""
    pays = view.pair_price <= view.edge_budget[view.pair_edge]
    return np.flatnonzero(view.eligible & pays).astype(np.int64)


def _ratio(above: float, below: FloatArray) -> FloatArray:
    """Divide and stay in [0, 1e4]; nothing, or less than nothing, below means 1e4."""
    return np.minimum(above / np.maximum(below, above / _MAX_CONTEXT), _MAX_CONTEXT)


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
        model_bits: float | None = None,
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

    def aspects(self, view: RoundView) -> Aspects:
        """Return the estimated time."""
        return {"estimated seconds": self._times.lower_bound(view)}

    def learn(self, feedback: Feedback) -> None:
        """Learn the times."""
        self._times.learn(feedback)
