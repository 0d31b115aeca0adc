"""Scoring models on the device's own new samples, before it learns from them.

Prequential: every sample is held out until it has been scored, so a stream needs no test set,
and none of it is lost for learning. Nothing but a score and a count leaves the device.

With local differential privacy a score is clipped, rounded and noised here. Clipped to [low, high],
the whole stream of a device may change it by high - low at most; Laplace noise of scale
(high - low) / epsilon makes the answer epsilon-differentially private. Noise and accounting are
OpenDP's, whose sampler floating-point attacks do not break. The count is sent as it is.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedagent_task.models import Inputs, Labels, Model, Weights
from fedagent_task.models.base import batches
from fedagent_task.privacy.accountant import opendp
from fedagent_task.recipe.spec import OpinionsSpec, TaskSpec
from fedagent_task.scoring.graph import evaluation_of

if TYPE_CHECKING:
    from opendp.mod import Measurement

MAX_SAMPLES = 1000
"""Samples of one arrival that are scored; of more, that many spread evenly over them."""


class Scorer:
    """Scores the base model of one order after the other.

    A classifier's score is its accuracy, a regression's 1 / (1 + root of the mean squared error).
    With `on_device` each order's model is looked at, except in mode ``peers``.
    """

    def __init__(self, task: TaskSpec, model: Model) -> None:
        self._model = model
        # Whoever made the task: where neighbours decide nobody else is told of opinions.
        self._wanted = task.on_device and task.opinions.mode != "peers"
        self._regression = model.spec.regression
        self._base: Weights = {}
        self._sum = 0.0
        self._count = 0

    def begin(self, base: Weights) -> None:
        """Take the model of a new order; what was scored before is forgotten."""
        self._base, self._sum, self._count = base, 0.0, 0

    def look(self, x: Inputs, y: Labels) -> None:
        """Score samples that nobody has learnt from yet: scaled [n, features], labels [n]."""
        if not self._wanted:
            return
        if len(y) > MAX_SAMPLES:
            rows = np.linspace(0, len(y) - 1, MAX_SAMPLES).astype(np.intp)
            x, y = x[rows], y[rows]
        self.add(x, y)

    def add(self, x: Inputs, y: Labels) -> None:
        """Score all of these samples: scaled [n, features], labels [n]."""
        for part in batches(len(y), MAX_SAMPLES):
            found = evaluation_of(self._model, self._base, x[part], y[part])
            value = found.loss if self._regression else found.accuracy or 0.0
            self._count += found.count
            self._sum += value * found.count

    @property
    def metric(self) -> str:
        """What the score is."""
        return "inverse-error" if self._regression else "accuracy"

    @property
    def count(self) -> int:
        """Samples that the score rests on; 0 if there is none."""
        return self._count

    @property
    def score(self) -> float:
        """The score since `begin`, in [0, 1]; 0 without samples."""
        if not self._count:
            return 0.0
        mean = self._sum / self._count
        if not self._regression:
            return mean
        return 1.0 / (1.0 + math.sqrt(mean)) if math.isfinite(mean) else 0.0


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
        NotInstalledError: Noise is wanted and cannot be made; nothing may be sent.
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
