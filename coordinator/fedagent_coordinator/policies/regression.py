"""Binary regressions that sharpen with outcomes and fade towards their prior.

The chance of success is ``exp(-exp(x theta))``, exact for a link with Rayleigh fading, or
``1 / (1 + exp(x theta))`` (logit). A belief about theta is a Gaussian; each round moves it to
the maximum of its penalised likelihood by damped Newton steps (ALGORITHMS section 9).
"""

from dataclasses import dataclass

import numpy as np

from .base import BoolArray, FloatArray

_CLIP = (-12.0, 5.0)
_STEPS = 12
_HALVINGS = 8
_ENOUGH = 1e-4
"""Gain in log-likelihood below which another step is not worth its time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """What is believed before anything is seen; `keep` of the evidence is left after a round."""

    mean: FloatArray
    precision: FloatArray  # float64[D], or float64[D, D]
    keep: float
    logit: bool = False

    @property
    def matrix(self) -> FloatArray:
        """float64[D, D], the precision."""
        return np.diag(self.precision) if self.precision.ndim == 1 else self.precision


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
    np.clip(eta, *_CLIP, out=eta)
    np.exp(eta, out=eta)
    return 1.0 / (1.0 + eta) if prior.logit else np.exp(-eta, out=eta)


def updated(
    prior: Prior, belief: Belief, x: FloatArray, success: BoolArray, weight: FloatArray
) -> Belief:
    """Return the belief after a round, x float64[S, D], success bool[S], weight float64[S]."""
    if not len(x):
        return belief
    kept, faded = prior.keep * belief.precision, (1 - prior.keep) * prior.matrix
    precision = kept + faded
    pull = kept @ belief.theta + faded @ prior.mean
    theta: FloatArray = np.asarray(np.linalg.solve(precision, pull), dtype=np.float64)
    centre = theta

    def gain(at: FloatArray, log_likelihood: FloatArray) -> float:
        away = at - centre
        return float(log_likelihood @ weight - 0.5 * away @ precision @ away)

    fit, slope, curve = _fitted(x @ theta, success, logit=prior.logit)
    best = gain(theta, fit)
    for _ in range(_STEPS):
        hessian = precision + (x * (curve * weight)[:, None]).T @ x
        step = np.linalg.solve(hessian, x.T @ (slope * weight) - precision @ (theta - centre))
        for _ in range(_HALVINGS):
            there = theta + step
            fit, slope, curve = _fitted(x @ there, success, logit=prior.logit)
            reached = gain(there, fit)
            if reached >= best:
                break
            step = 0.5 * step
        else:
            break
        theta, grown, best = there, reached - best, reached
        if grown < _ENOUGH:
            break
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
        happens = -np.expm1(-rate)
        fit = np.where(success, -rate, np.log(happens))
        hazard = rate * np.exp(-rate) / happens
        slope, curve = np.where(success, -rate, hazard), np.maximum(rate * hazard, 1e-6)
    return fit + slope * (eta - inside), slope, curve
