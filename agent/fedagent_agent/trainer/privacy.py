"""Local differential privacy of an opinion: clipped, rounded and noised on the device.

Clipped to [low, high], the whole stream of a device may change the score by high - low at most;
Laplace noise of scale (high - low) / epsilon makes the answer epsilon-differentially private.
Noise and accounting are OpenDP's, whose sampler floating-point attacks do not break. The number
of samples an opinion rests on is sent as it is.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from fedagent_task.privacy.accountant import opendp
from fedagent_task.recipe.spec import OpinionsSpec

if TYPE_CHECKING:
    from opendp.mod import Measurement


def shape(score: float, spec: OpinionsSpec) -> float:
    """Return the score clipped to [low, high] and rounded to steps from low on."""
    clipped = min(max(score, spec.low), spec.high)
    if spec.step <= 0:
        return clipped
    steps = round((clipped - spec.low) / spec.step)
    return min(spec.low + steps * spec.step, spec.high)


def protect(score: float, spec: OpinionsSpec) -> tuple[float, float]:
    """Return what a task lets out of a score in [0, 1], with new noise each time, and its cost.

    The cost is epsilon by OpenDP's accounting, 0 without noise.

    Raises:
        OpenDpMissingError: Noise is wanted and cannot be made; nothing may be sent.
    """
    shaped = shape(score, spec)
    if spec.epsilon <= 0:
        return shaped, 0.0
    measurement = laplace(spec.high - spec.low, spec.epsilon)
    noised, cost = float(measurement(shaped)), float(measurement.map(spec.high - spec.low))
    return min(max(noised, 0.0), 1.0), cost


@lru_cache(maxsize=8)
def laplace(sensitivity: float, epsilon: float) -> "Measurement":
    """Return OpenDP's Laplace mechanism for one number; raises as `opendp`."""
    dp = opendp()
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    return dp.m.make_laplace(*space, scale=sensitivity / epsilon)
