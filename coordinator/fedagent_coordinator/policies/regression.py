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
    k = prior.keep
    faded = (1 - k) * prior.matrix
    precision = k * belief.precision + faded
    pull = k * belief.precision @ belief.theta + faded @ prior.mean
    theta: FloatArray = np.asarray(np.linalg.solve(precision, pull), dtype=np.float64)
    centre = theta

    def gain(at: FloatArray) -> float:
        away = at - centre
        fit = _log_likelihood(x @ at, success, logit=prior.logit) @ weight
        return float(fit - 0.5 * away @ precision @ away)

    best = gain(theta)
    for _ in range(_STEPS):
        slope, curve = _derivatives(x @ theta, success, logit=prior.logit)
        hessian = precision + (x * (curve * weight)[:, None]).T @ x
        step = np.linalg.solve(hessian, x.T @ (slope * weight) - precision @ (theta - centre))
        for _ in range(_HALVINGS):
            reached = gain(theta + step)
            if reached >= best:
                break
            step = 0.5 * step
        else:
            break
        theta, grown, best = theta + step, reached - best, reached
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


def _log_likelihood(eta: FloatArray, success: BoolArray, *, logit: bool) -> FloatArray:
    """Return float64[S]; beyond the clip it goes on as a straight line, so that it is concave."""
    inside = np.clip(eta, *_CLIP)
    rate = np.exp(inside)
    if logit:
        fit = np.where(success, -np.log1p(rate), inside - np.log1p(rate))
    else:
        fit = np.where(success, -rate, np.log(-np.expm1(-rate)))
    slope, _ = _derivatives(inside, success, logit=logit)
    return np.asarray(fit + slope * (eta - inside), dtype=np.float64)


def _derivatives(
    eta: FloatArray, success: BoolArray, *, logit: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the slope of the log-likelihood in eta and its Fisher weight, float64[S] each."""
    rate = np.exp(np.clip(eta, *_CLIP))
    if logit:
        fails = rate / (1.0 + rate)
        return (~success) - fails, np.maximum(fails * (1.0 - fails), 1e-6)
    hazard = rate * np.exp(-rate) / -np.expm1(-rate)
    return np.where(success, -rate, hazard), np.maximum(rate * hazard, 1e-6)
