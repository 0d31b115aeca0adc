"""Binary regressions that sharpen with outcomes and fade towards their prior.

The chance of success is ``exp(-exp(x theta))``, exact for a link with Rayleigh fading, or
``1 / (1 + exp(x theta))`` (logit). A belief about theta is a Gaussian; each round moves it to
the maximum of its penalised likelihood by damped Newton steps (ALGORITHMS section 9).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray

_CLIP = (-12.0, 5.0)
"""Beyond them a chance is 0 or 1 to six digits and more."""
_STEPS = 60
_HALVINGS = 8
"""Newton steps of a round, and how often one is halved, at most. Three are usual; where Fisher's
curvature is far from the true one they zigzag, and twelve left 0.003 of the log-likelihood."""
_ENOUGH = 1e-4
"""Gain in log-likelihood below which another step is not worth its time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is believed before anything is seen; `keep` of the evidence is left after a round."""

    mean: FloatArray
    precision: FloatArray  # float64[D], or float64[D, D]
    keep: float
    logit: bool = False

    @cached_property
    def matrix(self) -> FloatArray:
        """float64[D, D], the precision."""
        return np.diag(self.precision) if self.precision.ndim == 1 else self.precision

    @cached_property
    def pull(self) -> tuple[FloatArray, FloatArray]:
        """float64[D, D] and float64[D]: the precision a round adds, and that times the mean."""
        faded = (1 - self.keep) * self.matrix
        return faded, faded @ self.mean


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A Gaussian over theta: float64[D] and its precision, float64[D, D]."""

    theta: FloatArray
    precision: FloatArray


def start(prior: Prior) -> Belief:
    """Return the belief before anything is seen."""
    return Belief(prior.mean.copy(), prior.matrix.copy())


def chance(prior: Prior, eta: FloatArray) -> FloatArray:
    """Return the probability of success for every ``x theta``, float64[P]; overwrites `eta`."""
    eta.clip(*_CLIP, out=eta)
    np.exp(eta, out=eta)
    if not prior.logit:
        return np.exp(np.negative(eta, out=eta), out=eta)
    eta += 1.0
    return np.divide(1.0, eta, out=eta)


def updated(
    prior: Prior, belief: Belief, x: FloatArray, success: BoolArray, weight: FloatArray
) -> Belief:
    """Return the belief after a round, x float64[S, D], success bool[S], weight float64[S]."""
    if not len(x):
        return belief
    kept, (faded, pull) = prior.keep * belief.precision, prior.pull
    precision = kept + faded
    centre: FloatArray = np.asarray(
        np.linalg.solve(precision, kept @ belief.theta + pull), dtype=np.float64
    )
    theta, back = centre, np.zeros(len(centre))  # what pulls it back to the centre
    fit, slope, curve = _fitted(x @ theta, success, logit=prior.logit)
    best = float(fit @ weight)
    for _ in range(_STEPS):
        hessian = precision + (x * (curve * weight)[:, None]).T @ x
        step = np.linalg.solve(hessian, x.T @ (slope * weight) - back)
        for _ in range(_HALVINGS):
            there = theta + step
            fit, slope, curve = _fitted(x @ there, success, logit=prior.logit)
            away = there - centre
            reached = float(fit @ weight - 0.5 * away @ precision @ away)
            if reached >= best:
                break
            step = 0.5 * step
        else:
            break
        theta, grown, best = there, reached - best, reached
        if grown < _ENOUGH:
            break
        back = precision @ away
    return Belief(theta, hessian)


def definite(precision: FloatArray) -> bool:
    """Return whether a matrix, float64[D, D], is some Gaussian's precision."""
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return False
    return True


def _fitted(
    eta: FloatArray, success: BoolArray, *, logit: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the log-likelihood, its slope in eta and its Fisher weight, float64[S] each.

    Beyond the clip it goes on as a straight line, so that it is concave.
    """
    low, high = _CLIP
    inside = np.minimum(np.maximum(eta, low), high)
    rate = np.exp(inside)
    if logit:
        log1p = np.log1p(rate)
        fit = np.where(success, -log1p, inside - log1p)
        fails = rate / (1.0 + rate)
        slope, curve = (~success) - fails, np.maximum(fails * (1.0 - fails), 1e-6)
    else:
        minus = -rate
        happens = -np.expm1(minus)
        fit = np.where(success, minus, np.log(happens))
        hazard = rate * np.exp(minus) / happens
        slope, curve = np.where(success, minus, hazard), np.maximum(rate * hazard, 1e-6)
    return fit + slope * (eta - inside), slope, curve
