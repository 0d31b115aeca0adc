"""What a model is evaluated by: one rule for every place that shows it, and for the best model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedagent_task.recipe.spec import Recipe

NO_DATASET = "none"
"""`evaluation.dataset` where the coordinator has no held-out samples."""
HELD_OUT, ON_DEVICES, IN_TRAINING = "held-out samples", "the devices' new samples", "training"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a model: its key among the metrics of a round, and its word for people.

    `rooted` is the metric whose root it is, and the factor before the root is drawn.
    """

    key: str
    word: str
    where: str
    rising: bool = False
    rooted: tuple[str, float] | None = None

    def of(self, metrics: Mapping[str, float]) -> float | None:
        """Return its value in the metrics of a round; None if it was not measured."""
        if self.key in metrics or self.rooted is None:
            return metrics.get(self.key)
        square = metrics.get(self.rooted[0])
        return None if square is None else math.sqrt(max(self.rooted[1] * square, 0.0))

    def rank(self, value: float) -> float:
        """Return a number that is larger for a better value."""
        return value if self.rising else -value


ACCURACY = Measure("accuracy", "accuracy", HELD_OUT, rising=True)
LOSS = Measure("loss", "loss", HELD_OUT)
RMSE = Measure("rmse", "error", HELD_OUT, rooted=("loss", 1.0))
MAE = Measure("mae", "mean absolute error", HELD_OUT)
DEVICE_SCORE = Measure("device_score", "on devices", ON_DEVICES, rising=True)
TRAIN_LOSS = Measure("train_loss", "training loss", IN_TRAINING)
# Devices minimise half the squared error.
TRAIN_ERROR = Measure("train_error", "training error", IN_TRAINING, rooted=("train_loss", 2.0))

BY_KEY = {
    one.key: one for one in (ACCURACY, LOSS, RMSE, MAE, DEVICE_SCORE, TRAIN_LOSS, TRAIN_ERROR)
}


def measures_of(recipe: Recipe | None) -> tuple[Measure, ...]:
    """Return what a run's models are measured by; they are evaluated by the first.

    With held-out samples that is the accuracy of a classifier and the error of a
    regression, without them what devices report: a score, or the loss of their training.
    Where neighbours decide (mode ``peers``) devices report neither. A recipe that this version
    cannot read is None.
    """
    if recipe is None:
        return (ACCURACY, LOSS, DEVICE_SCORE, TRAIN_LOSS)
    regression, silent = recipe.model.regression, recipe.opinions.mode == "peers"
    found: list[Measure] = []
    if recipe.evaluation.dataset != NO_DATASET:
        found += [RMSE, MAE, LOSS] if regression else [ACCURACY, LOSS]
    if recipe.evaluation.on_device and not silent:
        found.append(DEVICE_SCORE)
    if not silent:
        found += [TRAIN_ERROR, TRAIN_LOSS] if regression else [TRAIN_LOSS]
    return tuple(found)


def few(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return those that fit beside other columns: of held-out samples if there are any."""
    if not any(one.where == HELD_OUT for one in measures):
        return tuple(measures)
    return tuple(one for one in measures if one.where != IN_TRAINING and one is not MAE)


def complete(measures: Iterable[Measure], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a round, with those that follow from others."""
    values = {one.key: value for one in measures if (value := one.of(metrics)) is not None}
    return {**metrics, **values}
