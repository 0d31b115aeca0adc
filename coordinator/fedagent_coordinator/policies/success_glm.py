"""An online regression of "arrives in time", with a memory that fades.

The chance of an update in time is ``exp(-exp(x theta))`` (complementary log-log of the
failure) or ``1 / (1 + exp(x theta))`` (logit). The first is exact for a link with
Rayleigh fading, where theta weighs logarithms of required rate, distance and bandwidth;
the second is a plain classifier. Beliefs about theta are a Gaussian that each round's
outcomes sharpen by Newton's method, and that fades towards the prior.
"""

from dataclasses import dataclass

import numpy as np

from .base import BoolArray, FloatArray

_CLIP = (-12.0, 5.0)
_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """What is believed before anything is seen.

    Attributes:
        mean: float64[D].
        precision: float64[D], inverse variances.
        keep: Share of the evidence that is left after a round, in (0, 1].
        logit: Classifier instead of the link with fading.
    """

    mean: FloatArray
    precision: FloatArray
    keep: float
    logit: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A Gaussian over theta: float64[D] and its precision, float64[D, D]."""

    theta: FloatArray
    precision: FloatArray


def start(prior: Prior) -> Belief:
    """Return the belief before anything is seen."""
    return Belief(prior.mean.copy(), np.diag(prior.precision))


def chance(prior: Prior, theta: FloatArray, x: FloatArray) -> FloatArray:
    """Return the probability of success of every row, float64[P]."""
    eta = np.clip(x @ theta, *_CLIP)
    np.exp(eta, out=eta)
    return 1.0 / (1.0 + eta) if prior.logit else np.exp(-eta, out=eta)


def updated(prior: Prior, belief: Belief, x: FloatArray, success: BoolArray) -> Belief:
    """Return the belief after one round's outcomes.

    Args:
        prior: Of this model.
        belief: Before the round.
        x: float64[S, D].
        success: bool[S].
    """
    if not len(x):
        return belief
    k = prior.keep
    precision = k * belief.precision + (1 - k) * np.diag(prior.precision)
    pull = k * belief.precision @ belief.theta + (1 - k) * prior.precision * prior.mean
    centre = np.linalg.solve(precision, pull)
    theta = centre
    for _ in range(_STEPS):
        slope, weight = _derivatives(np.clip(x @ theta, *_CLIP), success, logit=prior.logit)
        hessian = precision + (x * weight[:, None]).T @ x
        theta = theta + np.linalg.solve(hessian, x.T @ slope - precision @ (theta - centre))
    return Belief(np.asarray(theta, dtype=np.float64), hessian)


def definite(precision: FloatArray) -> bool:
    """Return whether a matrix, float64[D, D], is some Gaussian's precision."""
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return False
    return True


def _derivatives(
    eta: FloatArray, success: BoolArray, *, logit: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the slope of the log-likelihood in eta and its Fisher weight, float64[S] each."""
    rate = np.exp(eta)
    if logit:
        fails = rate / (1.0 + rate)
        return (~success) - fails, np.maximum(fails * (1.0 - fails), 1e-6)
    hazard = rate * np.exp(-rate) / -np.expm1(-rate)
    return np.where(success, -rate, hazard), np.maximum(rate * hazard, 1e-6)
