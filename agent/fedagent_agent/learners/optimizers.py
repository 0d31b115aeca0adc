"""Local optimisers in numpy: the steps of torch's, with its defaults and names.

Their state is of one round: each round begins from another model.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Floats
from fedagent_task.recipe.spec import LearnerSpec

Arrays = dict[str, npt.NDArray[np.float32]]
Gradient = Mapping[str, Floats]
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as torch's defaults."""
_CLIP_EPSILON = 1e-6


class Optimizer(Protocol):
    """Moves weights by a gradient; deterministic."""

    def apply(self, weights: Arrays, gradient: Gradient, rate: float) -> None:
        """Take one step in place; `weights` may hold more tensors than the gradient."""


class Sgd:
    """``w - rate * gradient``, with torch's momentum, which starts as the first gradient."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._momentum, self._decay = np.float32(spec.momentum), np.float32(spec.weight_decay)
        self._speed: Arrays = {}

    def apply(self, weights: Arrays, gradient: Gradient, rate: float) -> None:
        """Take one step."""
        step = np.float32(rate)
        for name, given in gradient.items():
            slope = given + self._decay * weights[name] if self._decay else given
            weights[name] -= step * (self._hurried(name, slope) if self._momentum else slope)

    def _hurried(self, name: str, slope: Floats) -> Floats:
        speed = self._speed.get(name)
        if speed is None:
            speed = self._speed[name] = np.array(slope, np.float32)
        else:
            speed *= self._momentum
            speed += slope
        return speed


class Adam:
    """Kingma and Ba's Adam; with `decoupled` decay AdamW (Loshchilov and Hutter)."""

    def __init__(self, spec: LearnerSpec, *, decoupled: bool) -> None:
        self._decay, self._decoupled = spec.weight_decay, decoupled
        self._first: Arrays = {}
        self._second: Arrays = {}
        self._steps = 0

    def apply(self, weights: Arrays, gradient: Gradient, rate: float) -> None:
        """Take one step."""
        self._steps += 1
        one, two = BETAS
        size = np.float32(rate / (1.0 - one**self._steps))
        root = np.float32(math.sqrt(1.0 - two**self._steps))
        for name, given in gradient.items():
            weight, slope = weights[name], given
            if self._decay and self._decoupled:
                weight *= np.float32(1.0 - rate * self._decay)
            elif self._decay:
                slope = given + np.float32(self._decay) * weight
            first = _mean(self._first, name, slope, one)
            second = _mean(self._second, name, np.square(slope), two)
            scale = np.sqrt(second)
            scale /= root
            scale += np.float32(EPSILON)
            weight -= size * (first / scale)


def create_optimizer(spec: LearnerSpec) -> Optimizer:
    """Return the optimiser that a recipe names, at the start of a round."""
    return Sgd(spec) if spec.optimizer == "sgd" else Adam(spec, decoupled=spec.optimizer == "adamw")


def clip(gradient: dict[str, Floats], limit: float) -> None:
    """Scale the gradient to an L2 norm over all tensors of at most `limit`; 0 for no limit."""
    if limit <= 0:
        return
    norm = math.sqrt(sum(float(np.vdot(slope, slope)) for slope in gradient.values()))
    factor = limit / (norm + _CLIP_EPSILON)
    if factor < 1.0:
        for name, slope in gradient.items():
            gradient[name] = slope * slope.dtype.type(factor)


def _mean(means: Arrays, name: str, new: Floats, beta: float) -> npt.NDArray[np.float32]:
    """Move a running mean towards a new value; it begins at 0."""
    mean = means.get(name)
    if mean is None:
        mean = means[name] = np.zeros(new.shape, np.float32)
    mean *= np.float32(beta)
    mean += np.float32(1.0 - beta) * new
    return mean
