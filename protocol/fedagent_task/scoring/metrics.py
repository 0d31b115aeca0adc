"""How good a model is: plain functions on arrays, and one evaluation of all."""

import math
from dataclasses import dataclass

import numpy as np

from fedagent_task.models import Doubles, Inputs, Labels, Model, Svm, Weights

_BATCH = 4096
_MIN_PROBABILITY = 1e-15


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model on held-out data.

    The loss is the mean log-loss of a classifier, the (squared) hinge loss of an svm, the mean
    squared error of a regression; `mae` and `rmse` are in the labels' unit.
    """

    loss: float
    accuracy: float | None
    count: int
    mae: float | None = None

    @property
    def rmse(self) -> float | None:
        """Root of the mean squared error of a regression, in the labels' unit."""
        return None if self.mae is None else math.sqrt(self.loss)

    def metrics(self) -> dict[str, float]:
        """Return what was measured, by name; nothing of no samples or of what is not finite."""
        named = {"accuracy": self.accuracy, "loss": self.loss, "rmse": self.rmse, "mae": self.mae}
        known = {name: value for name, value in named.items() if value is not None}
        return {name: value for name, value in known.items() if self.count and math.isfinite(value)}


def accuracy(predicted: Labels, y: Labels) -> float:
    """Return the share of equal labels; 0 without samples."""
    return float((predicted == y).mean()) if len(y) else 0.0


def log_loss(probabilities: Doubles, y: Labels) -> float:
    """Return the mean negative log-probability in nats of the true classes."""
    if not len(y):
        return 0.0
    true = probabilities[np.arange(len(y)), y.astype(np.intp)]
    return -float(np.log(np.maximum(true, _MIN_PROBABILITY)).mean())


def mse(predicted: Labels, y: Labels) -> float:
    """Return the mean squared error; 0 without samples."""
    return float(np.square(predicted.astype(np.float64) - y).mean()) if len(y) else 0.0


def evaluate(model: Model, weights: Weights, x: Inputs, y: Labels) -> Evaluation:
    """Evaluate a model on scaled samples, in batches so that memory stays small."""
    regression = model.spec.regression
    loss = right = wrong = 0.0
    for start in range(0, len(y), _BATCH):
        part, truth = x[start : start + _BATCH], y[start : start + _BATCH]
        output = model.forward(weights, part)
        if regression:
            loss += mse(output[:, 0], truth) * len(truth)
            wrong += float(np.abs(output[:, 0] - truth).sum())
        else:
            evaluated = model.score_loss if isinstance(model, Svm) else log_loss
            loss += evaluated(output, truth) * len(truth)
            right += accuracy(output.argmax(axis=1), truth) * len(truth)
    count = max(len(y), 1)
    if regression:
        return Evaluation(loss / count, None, len(y), wrong / count)
    return Evaluation(loss / count, right / count, len(y))
