"""`primal-dual`: iterations by online convex control (BAS, P1, eq. 10-11; ALGORITHMS section 7).

docs/iterations.md explains units and parameters.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import Feedback, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats
from fedagent_protocol.registry import number, whole

MAX_ITERATIONS = 1_000_000
"""Largest number of iterations of one arrival step."""
LOAD_LIMIT = "load_limit_s"
"""Feature: how much training computation a round may cost a device."""
MIN_LIMIT_S = 1e-3
"""No device is held to less: the wire has whole milliseconds."""
MIN_H_S, MAX_H_S = 1e-9, 2.6e6
"""What a device says of an iteration over a round's steps is not believed beyond a month."""


class PrimalDualControl(ArrayState):
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

    name = "primal-dual"
    _h = floats("clients", start=math.nan, nan=True)
    _load = floats("clients", least=0)
    _numbers = floats(3, least=0)
    """The real number of iterations, the multiplier of quality, rounds."""

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
        self._least = whole(self.name, "least", least, 1, MAX_ITERATIONS)
        self._most = whole(self.name, "most", most, self._least, MAX_ITERATIONS)
        self.load_limit_s = number(self.name, "load_limit_s", load_limit_s, least=0.0)
        self._epsilon = number(self.name, "epsilon", epsilon)
        self._xi = number(self.name, "xi", xi, most=0.5)
        self._alpha = number(self.name, "alpha", alpha, most=1.0)
        self._u, self._h_max = number(self.name, "u", u), number(self.name, "h_max", h_max)
        self._scale = number(self.name, "scale", scale)
        self._normalise = normalise
        start = whole(self.name, "start", start, 1, MAX_ITERATIONS)
        self._numbers[0] = min(max(start, self._least), self._most)

    @property
    def rho(self) -> float:
        """The real number of iterations of the next round, before it is rounded."""
        return float(self._numbers[0])

    def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the real number rounded up or down at random for all, right on average."""
        return np.full(len(clients), rounded(self.rho, rng), dtype=np.int64)

    def learn(self, feedback: Feedback, *, horizon: float, steps: int = 1) -> None:
        """Move the multipliers by what the round showed, then the iterations.

        A device that did not answer keeps the seconds it showed last; a round in which
        nobody answered moves nothing.
        """
        self._numbers[2] += 1
        seen = observed_training(feedback, steps=steps, default_limit_s=self.load_limit_s)
        self.grow(clients=int(seen.client.max(initial=-1)) + 1)
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
        cost, load, width = self._units(limit_s)
        rho, quality, rounds = self._numbers.tolist()
        gamma = self._scale * max(horizon, 1.0) ** (-1 / 3)
        limited = np.isfinite(limit_s)
        over = np.where(limited, load * (rho * h_s - np.where(limited, limit_s, 0)), -np.inf)
        self._load[client] = np.maximum(0.0, self._load[client] + gamma * over)
        slack = omega * rho**-self._alpha / self._epsilon - self._xi
        quality = max(0.0, quality + gamma * slack)
        slope = cost * float(h_s.sum()) + float((self._load[client] * load * h_s).sum())
        rho = minimiser(
            slope=slope,
            weight=quality * omega / self._epsilon,
            alpha=self._alpha,
            centre=rho,
            gamma=gamma * width**2,
            least=float(self._least),
            most=float(self._most),
        )
        self._numbers = np.array([rho, quality, rounds])

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
            "rho": self.rho,
            "lambda_quality": float(self._numbers[1]),
            "lambda_load": float(self._load.max(initial=0.0)),
            "h_s": float(known.mean()) if len(known) else 0.0,
        }

    def problems(self) -> Iterator[str]:
        """Refuse iterations out of the range of these parameters."""
        if not self._least <= self._numbers[0] <= self._most:
            yield "has numbers out of range"


@dataclass(frozen=True, slots=True, eq=False)
class ObservedTraining:
    """One row for each device that was ordered.

    `h_s` is h_i of ALGORITHMS section 7: seconds per iteration times the arrival steps of the task,
    also where a load limit stopped the device before the last one.
    """

    client: IntArray  # int64[S], run-wide index
    h_s: FloatArray  # float64[S], NaN where it is unknown
    limit_s: FloatArray  # float64[S], pi: the run's limit or the device's own; infinite for none
    arrivals: FloatArray  # float64[S], samples that came in


def observed_training(
    feedback: Feedback, *, steps: int, default_limit_s: float
) -> ObservedTraining:
    """Return what a settled round of `steps` arrival steps (|M_t|) showed; limit 0 is none."""
    f, view = feedback, feedback.view
    rows = len(f.pairs)
    each_s = f.seconds_per_iteration
    known = ~f.unpaid & np.isfinite(each_s) & (each_s > 0)
    h_s = np.clip(np.minimum(each_s, MAX_H_S) * steps, MIN_H_S, MAX_H_S)
    h_s = np.where(known, h_s, np.nan)
    limit_s = np.full(rows, default_limit_s if default_limit_s > 0 else math.inf)
    own_s = view.optional(LOAD_LIMIT)[f.pairs]
    limit_s = np.where(own_s > 0, np.minimum(own_s, limit_s), limit_s)
    limit_s = np.maximum(limit_s, MIN_LIMIT_S)
    return ObservedTraining(
        client=view.pair_client[f.pairs].astype(np.int64),
        h_s=h_s,
        limit_s=limit_s,
        arrivals=f.arrivals.astype(np.float64),
    )


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

    The function is ``slope rho + weight rho^-alpha + (rho - centre)^2 / (2 gamma)`` with a slope
    and a weight of at least 0; its derivative increases, so the minimum is at an end or where
    the derivative is 0: Newton's steps, and bisection where one leaves the bracket or gains too
    little.
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
