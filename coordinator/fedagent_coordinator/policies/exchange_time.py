"""What a client's model exchange will take: one ridge regression per client.

tau = theta . [1/mu, s, M/B] + noise (ALGORITHMS section 4): mu the available CPU
ratio, s = 1 for a client that did not take part in the last round, M the model in
bits, B the bandwidth. All clients are kept as arrays; H^-1 moves by rank-one
updates (Sherman-Morrison).
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import ParameterError

from .base import BoolArray, Feedback, FloatArray, IndexArray, IntArray, RoundView
from .states import Shape, check_arrays, require

LAYOUT: Mapping[str, type[np.generic]] = {
    "inverse": np.float64,
    "moment": np.float64,
    "warm": np.bool_,
}
"""Arrays of `ExchangeTimes.state`."""

MIN_RIDGE = 1e-9
"""With less, a first observation leaves nothing of H^-1 but rounding."""

_D = 3
_MAX_CONTEXT = 1e4
"""A context entry stops here: beyond hours, or a hundredth of a percent of a CPU,
nothing is left to tell apart, and H^-1 keeps half of its digits."""


class LinearModel:
    """Ridge regression of N clients at once; a client not yet seen has the prior.

    Args:
        ridge: lambda of H = lambda I.
    """

    def __init__(self, ridge: float) -> None:
        self._ridge = ridge
        self.inverse: FloatArray = np.empty((0, _D, _D))
        self.moment: FloatArray = np.empty((0, _D))

    def grow(self, clients: int) -> None:
        """Have at least this many clients."""
        self.inverse, self.moment = self._grown(clients)

    def estimate(
        self, client: IndexArray, context: FloatArray, alpha: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the expected time and its lower bound (eq. 19), float64[P] each.

        Args:
            client: int32[P].
            context: float64[P, 3].
            alpha: Width of the bound in standard deviations.
        """
        inverse, moment = self._grown(int(client.max(initial=-1)) + 1)
        turned, spread = _turned(inverse[client], context)
        mean = np.einsum("pi,pi->p", turned, moment[client])
        return mean, np.maximum(mean - alpha * np.sqrt(spread), 0.0)

    def update(self, client: IndexArray, context: FloatArray, tau_s: FloatArray) -> None:
        """Take in one observation of each of these clients, every client at most once.

        Args:
            client: int32[S], distinct and known (`grow`).
            context: float64[S, 3].
            tau_s: float64[S].
        """
        turned, spread = _turned(self.inverse[client], context)
        outer = turned[:, :, None] * turned[:, None, :]
        self.inverse[client] -= outer / (1.0 + spread)[:, None, None]
        self.moment[client] += tau_s[:, None] * context

    def _grown(self, clients: int) -> tuple[FloatArray, FloatArray]:
        """Return both arrays with at least this many clients, new ones at the prior."""
        new = clients - len(self.moment)
        if new <= 0:
            return self.inverse, self.moment
        prior = np.broadcast_to(np.eye(_D) / self._ridge, (new, _D, _D))
        return np.concatenate((self.inverse, prior)), np.concatenate(
            (self.moment, np.zeros((new, _D)))
        )


class ExchangeTimes:
    """The regression as policies use it: contexts from a view, answers from feedback.

    Args:
        name: The policy, for errors.
        lambda_: Ridge of the regression.
        alpha: Width of the confidence bound.
        model_bits: M, size of the model in bits.
        compute: Feature with mu, the available CPU ratio.
        bandwidth: Feature with B; with bit/s, M/B is seconds and theta a factor.
        deadline_s: What an exchange that did not come in time took at least; None
            takes the round's deadline, where it has one.

    Raises:
        ParameterError: A parameter is out of range.
    """

    def __init__(
        self,
        name: str,
        *,
        lambda_: float,
        alpha: float,
        model_bits: float,
        compute: str,
        bandwidth: str,
        deadline_s: float | None,
    ) -> None:
        self._name = name
        if not lambda_ >= MIN_RIDGE:
            raise ParameterError(name, "lambda_", f"is {lambda_!r}: must be >= {MIN_RIDGE:g}")
        self._positive("model_bits", model_bits)
        self._positive("deadline_s", 1.0 if deadline_s is None else deadline_s)
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ParameterError(name, "alpha", f"is {alpha!r}: must be >= 0")
        if compute == bandwidth:
            raise ParameterError(name, "bandwidth", f"is {bandwidth!r}, as compute is")
        self._alpha, self._model_bits = alpha, model_bits
        self._compute, self._bandwidth = compute, bandwidth
        self._deadline_s = deadline_s
        self._model = LinearModel(lambda_)
        self._warm: BoolArray = np.zeros(0, dtype=np.bool_)

    @property
    def needs(self) -> frozenset[str]:
        """The two features that contexts are made of."""
        return frozenset((self._compute, self._bandwidth))

    def lower_bound(self, view: RoundView) -> FloatArray:
        """Return the optimistic exchange time of every pair, seconds, float64[P]."""
        return self._model.estimate(view.pair_client, self.contexts(view), self._alpha)[1]

    def contexts(self, view: RoundView) -> FloatArray:
        """Return [1/mu, s, M/B] of every pair, float64[P, 3], entries in [0, 1e4]."""
        warm = np.zeros(max(len(view.client_price), len(self._warm)), dtype=np.bool_)
        warm[: len(self._warm)] = self._warm
        context = np.empty((len(view.pair_client), _D))
        context[:, 0] = _ratio(1.0, view.feature(self._compute))
        context[:, 1] = ~warm[view.pair_client]
        context[:, 2] = _ratio(self._model_bits, view.feature(self._bandwidth))
        return context

    def learn(self, feedback: Feedback) -> None:
        """Learn from all ordered pairs; what came late or never took max(waited, deadline)."""
        view, clients = feedback.view, len(feedback.view.client_price)
        played = view.pair_client[feedback.pairs]
        context = self.contexts(view)[feedback.pairs]
        late = np.maximum(feedback.tau_s, self._late_after(view))
        self._model.grow(clients)
        self._model.update(played, context, np.where(feedback.X, feedback.tau_s, late))
        self._warm = np.zeros(clients, dtype=np.bool_)
        self._warm[played] = True

    def _late_after(self, view: RoundView) -> float:
        """Return the deadline in seconds; 0 where nobody says one."""
        if self._deadline_s is not None:
            return self._deadline_s
        return view.deadline_s if math.isfinite(view.deadline_s) else 0.0

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return copies of everything learnt, as `LAYOUT` says."""
        return {
            "inverse": self._model.inverse.copy(),
            "moment": self._model.moment.copy(),
            "warm": self._warm.copy(),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continue from arrays that `base.checked_state` has passed.

        Raises:
            StateError: The arrays are of different lengths, or damaged.
        """
        shapes: dict[str, Shape] = {
            "inverse": ("clients", _D, _D),
            "moment": ("clients", _D),
            "warm": ("clients",),
        }
        check_arrays(self._name, arrays, shapes)
        spread = np.einsum("kii->ki", arrays["inverse"].astype(np.float64))
        require(self._name, bool((spread > 0).all()), "has an inverse that is none")
        self._model.inverse = arrays["inverse"].astype(np.float64)
        self._model.moment = arrays["moment"].astype(np.float64)
        self._warm = arrays["warm"].astype(np.bool_)

    def _positive(self, parameter: str, value: float) -> None:
        """Refuse a parameter that is not finite and above 0."""
        if not (math.isfinite(value) and value > 0):
            raise ParameterError(self._name, parameter, f"is {value!r}: must be > 0")


def min_per_client(view: RoundView, value: FloatArray, rows: IntArray) -> FloatArray:
    """Return each client's least value over these pairs, float64[N]; inf where it has none."""
    least = np.full(len(view.client_price), np.inf)
    np.minimum.at(least, view.pair_client[rows], value[rows])
    return least


def affordable(view: RoundView) -> IntArray:
    """Return the pairs that could be chosen if nothing else were, int64[K]."""
    pays = view.pair_price <= view.edge_budget[view.pair_edge]
    return np.flatnonzero(view.eligible & pays).astype(np.int64)


def _turned(inverse: FloatArray, context: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return H^-1 c, float64[P, 3], and c' H^-1 c >= 0, float64[P]."""
    turned = np.einsum("pij,pj->pi", inverse, context)
    return turned, np.maximum(np.einsum("pi,pi->p", turned, context), 0.0)


def _ratio(above: float, below: FloatArray) -> FloatArray:
    """Divide and stay in [0, 1e4]; nothing, or less than nothing, below means 1e4."""
    return np.minimum(above / np.maximum(below, above / _MAX_CONTEXT), _MAX_CONTEXT)
