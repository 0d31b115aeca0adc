"""`primal-dual`: iterations by online convex control (BAS, P1, eq. 10-11; ALGORITHMS section 7).

docs/iterations.md explains units and parameters.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedagent_coordinator.errors import ParameterError, StateError
from fedagent_coordinator.policies.base import (
    Feedback,
    FloatArray,
    IntArray,
    State,
    checked_state,
)

from .observed_training import grown, observed_training
from .parameter_checks import number, whole

_NAME = "primal-dual"


class PrimalDualControl:
    """`primal-dual`: online descent on the iterations, ascent on the multipliers (eq. 10-11).

    Args:
        least, most: Range of the iterations, whole numbers.
        start: The first number.
        load_limit_s: pi, seconds of training computation that a round may cost a device; a
            device that reports a smaller `load_limit_s` is held to its own. 0 for no limit.
        epsilon: Accuracy that the learner's sub-optimality is compared with.
        xi: Xi in (0, 1/2): what is left of it, over `epsilon`, is allowed on average.
        alpha: Exponent by which sub-optimality falls with the iterations, in (0, 1].
        u, h_max: Constants of the sub-optimality u max(1, (2n/M)^alpha) h_max rho^-alpha.
        scale: Both step sizes are ``scale * horizon^(-1/3)``.
        normalise: Measure in units of the problem (docs/iterations.md): seconds in load
            limits, averaged over devices; iterations in widths of the range. False: as
            printed, with seconds summed over devices.
    """

    _layout: Mapping[str, type[np.generic]] = {
        "h": np.float64,
        "load": np.float64,
        "numbers": np.float64,
    }

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 30,
        start: int = 5,
        load_limit_s: float = 0.0,
        epsilon: float = 0.005,
        xi: float = 0.3,
        alpha: float = 0.75,
        u: float = 1.0,
        h_max: float = 0.001,
        scale: float = 1.0,
        normalise: bool = True,
    ) -> None:
        self._least = whole(_NAME, "least", least, 1)
        self._most = whole(_NAME, "most", most, self._least)
        self._limit_s = number(_NAME, "load_limit_s", load_limit_s, least=0.0)
        self._epsilon = number(_NAME, "epsilon", epsilon)
        self._xi = number(_NAME, "xi", xi, most=0.5)
        self._alpha = number(_NAME, "alpha", alpha, most=1.0)
        self._u, self._h_max = number(_NAME, "u", u), number(_NAME, "h_max", h_max)
        self._scale = number(_NAME, "scale", scale)
        if not isinstance(normalise, bool):
            raise ParameterError(_NAME, "normalise", f"is {normalise!r}: must be true or false")
        self._normalise = normalise
        start = whole(_NAME, "start", start, 1)
        self._rho = float(min(max(start, self._least), self._most))
        self._quality = 0.0
        self._rounds = 0
        self._load: FloatArray = np.zeros(0)
        self._h: FloatArray = np.zeros(0)

    @property
    def load_limit_s(self) -> float:
        """Seconds of training computation that a round may cost a device; 0 for no limit."""
        return self._limit_s

    @property
    def rho(self) -> float:
        """The real number of iterations of the next round, before it is rounded."""
        return self._rho

    def choose(self, rng: np.random.Generator) -> int:
        """Return the real number rounded up or down at random, right on average."""
        return rounded(self._rho, rng)

    def learn(self, feedback: Feedback, *, horizon: float, steps: int = 1) -> None:
        """Move the multipliers by what the round showed, then the iterations.

        A device that did not answer keeps the seconds it showed last; a round in which
        nobody answered moves nothing.
        """
        self._rounds += 1
        seen = observed_training(feedback, steps=steps, default_limit_s=self._limit_s)
        size = max(len(self._h), int(seen.client.max(initial=-1)) + 1)
        self._h = grown(self._h, size, math.nan)
        self._load = grown(self._load, size, 0.0)
        answered = np.isfinite(seen.h_s)
        self._h[seen.client[answered]] = seen.h_s[answered]
        known = np.isfinite(self._h[seen.client])
        if not answered.any():
            return
        client, limit_s = seen.client[known], seen.limit_s[known]
        density = 2 * seen.arrivals[answered] / steps
        omega = float(np.mean(self._u * np.maximum(1.0, density**self._alpha) * self._h_max))
        self._move(client, self._h[client], limit_s, omega, horizon)

    def _move(
        self,
        client: IntArray,
        h_s: FloatArray,
        limit_s: FloatArray,
        omega: float,
        horizon: float,
    ) -> None:
        """Do the two steps of one round for the devices that took part in it."""
        cost, load, width = self._units(limit_s)
        gamma = self._scale * max(horizon, 1.0) ** (-1 / 3)
        limited = np.isfinite(limit_s)
        over = np.where(limited, load * (self._rho * h_s - np.where(limited, limit_s, 0)), -np.inf)
        self._load[client] = np.maximum(0.0, self._load[client] + gamma * over)
        slack = omega * self._rho**-self._alpha / self._epsilon - self._xi
        self._quality = max(0.0, self._quality + gamma * slack)
        slope = cost * float(h_s.sum()) + float((self._load[client] * load * h_s).sum())
        self._rho = minimiser(
            slope=slope,
            weight=self._quality * omega / self._epsilon,
            alpha=self._alpha,
            centre=self._rho,
            gamma=gamma * width**2,
            least=float(self._least),
            most=float(self._most),
        )

    def _units(self, limit_s: FloatArray) -> tuple[float, FloatArray, float]:
        """Return what a second costs, what a second of load counts, and the unit of rho."""
        if not self._normalise:
            return 1.0, np.ones(len(limit_s)), 1.0
        n = len(limit_s)
        limits = limit_s[np.isfinite(limit_s)]
        unit_s = float(limits.mean()) if len(limits) else 1.0
        load = 1.0 / (np.where(np.isfinite(limit_s), limit_s, unit_s) * math.sqrt(n))
        return 1.0 / (n * unit_s), load, float(max(self._most - self._least, 1))

    def notes(self) -> Mapping[str, float]:
        """Return the real rho, the multipliers and the mean seconds per iteration."""
        known = self._h[np.isfinite(self._h)]
        return {
            "rho": self._rho,
            "lambda_quality": self._quality,
            "lambda_load": float(self._load.max(initial=0.0)),
            "h_s": float(known.mean()) if len(known) else 0.0,
        }

    def state(self) -> State:
        """Return a copy of everything learnt."""
        numbers = np.array([self._rho, self._quality, float(self._rounds)])
        return {"h": self._h.copy(), "load": self._load.copy(), "numbers": numbers}

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is another control's.
        """
        arrays = checked_state(_NAME, state, self._layout)
        h, load = arrays["h"].astype(np.float64), arrays["load"].astype(np.float64)
        numbers = arrays["numbers"].astype(np.float64)
        if h.ndim != 1 or load.shape != h.shape or numbers.shape != (3,):
            raise StateError(_NAME, "has arrays of other shapes")
        held = np.concatenate((load, numbers))
        if not self._least <= numbers[0] <= self._most or not ((held >= 0) & (held < np.inf)).all():
            raise StateError(_NAME, "has numbers out of range")
        self._h, self._load = h, load
        self._rho, self._quality = float(numbers[0]), float(numbers[1])
        self._rounds = int(numbers[2])


def minimiser(
    *,
    slope: float,
    weight: float,
    alpha: float,
    centre: float,
    gamma: float,
    least: float,
    most: float,
) -> float:
    """Return the rho in [least, most] that minimises eq. 11.

    The function is ``slope rho + weight rho^-alpha + (rho - centre)^2 / (2 gamma)``; its
    derivative increases, so the minimum is at an end or where the derivative is 0: Newton's
    steps, and bisection where one leaves the bracket or gains too little.

    Args:
        slope: At least 0.
        weight: At least 0.
        alpha: Above 0.
        centre: The last rho.
        gamma: Step size, above 0.
        least: Above 0.
        most: At least `least`.
    """

    def derivative(rho: float) -> float:
        return slope - weight * alpha * math.pow(rho, -alpha - 1) + (rho - centre) / gamma

    if derivative(least) >= 0:
        return least
    if derivative(most) <= 0:
        return most
    low, high = least, most
    rho = min(max(centre, low), high)
    while high - low > 1e-12 * high:
        value = derivative(rho)
        low, high = (rho, high) if value <= 0 else (low, rho)
        step = value / (weight * alpha * (alpha + 1) * math.pow(rho, -alpha - 2) + 1 / gamma)
        if abs(step) <= 1e-13 * rho:
            break
        rho = rho - step if low < rho - step < high else (low + high) / 2
    return min(max(rho, least), most)


def rounded(rho: float, rng: np.random.Generator) -> int:
    """Return floor or ceiling of `rho`, at random so that the mean is `rho`."""
    whole = math.floor(rho)
    return whole + int(rng.random() < rho - whole)
