"""The samples that nobody trains on: global models are scored by them, and edges judged."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.tensors import Buffer
from fedagent_task import models
from fedagent_task.aggregation import CONTROL, Arrays
from fedagent_task.aggregation.edges import LARGEST_LOSS, PARTS
from fedagent_task.aggregation.robust import Robust
from fedagent_task.models.features import expect_fit
from fedagent_task.models.graph import Graph
from fedagent_task.readers import load
from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.graph import evaluation_of, scored
from fedagent_task.scoring.measures import NO_DATASET
from fedagent_task.scoring.metrics import Evaluation
from fedagent_task.task_file import TaskFile
from fedagent_task.travelling import model_tensors

from .run_settings import robust_of

JUDGING_EVERY, FEWEST_JUDGING, MOST_JUDGING = 5, 40, 200


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """A held-out set, scaled and checked once.

    Under a robust rule `judging` has parts of it that edge models are judged by, and that nobody
    reports on.
    """

    model: models.Model
    x: models.Floats
    y: models.Labels
    judging: tuple[tuple[models.Floats, models.Labels], ...] = ()

    def evaluate(self, data: Buffer) -> Evaluation:
        """Return how good the model in these safetensors bytes is."""
        return self._evaluate(model_tensors(data, self.model.manifest()), self.x, self.y)

    def judge(self, tensors: Arrays) -> models.Doubles:
        """Return what a model loses on each part that is for judging, float64[PARTS]."""
        plain = {name: one for name, one in tensors.items() if not name.startswith(CONTROL)}
        # What is no number, or cannot be computed, is as bad as can be, and its mean a number.
        found = [LARGEST_LOSS] * PARTS
        with np.errstate(over="ignore", invalid="ignore"), suppress(FedagentError):
            found = [self._evaluate(plain, *part).loss for part in self.judging]
        bounded: models.Doubles = np.clip(np.array(found), None, LARGEST_LOSS)
        return np.nan_to_num(bounded, nan=LARGEST_LOSS)

    def _evaluate(self, tensors: Arrays, x: models.Floats, y: models.Labels) -> Evaluation:
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        return evaluation_of(self.model, weights, x, y)


def held_out(recipe: Recipe, task: TaskFile | None = None) -> HeldOutSet | None:
    """Load the recipe's held-out set; None if it has none, or if nothing here can score by it.

    Under a robust rule a fifth of the samples, `MOST_JUDGING` at most, is for judging edges.
    """
    name = recipe.evaluation.dataset
    if name == NO_DATASET:
        return None
    named = [one.name for one in recipe.data.features]
    dataset = load(name, features=recipe.model.features).ordered(named)
    x = expect_fit(name, dataset.x, dataset.y, recipe.model, recipe.data)
    model: models.Model | None = models.create(recipe.model)
    if isinstance(model, Graph) and task is not None:
        model = scored(model, task.once, task.onnx)
        if model is not None:
            model.forward(task.first, x[:1])  # what it cannot is told at the start
    if model is None:
        return None
    y, count = dataset.y, min(len(x) // JUDGING_EVERY, MOST_JUDGING)
    if count < FEWEST_JUDGING or type(robust_of(recipe)) is Robust:
        return HeldOutSet(model, x, y)
    # Files are sorted by label, or repeat them in turn: by chance, the same after a restart.
    mixed = np.random.default_rng(recipe.seed).permutation(len(x))
    rest, parts = np.sort(mixed[count:]), np.array_split(mixed[:count], PARTS)
    return HeldOutSet(model, x[rest], y[rest], tuple((x[part], y[part]) for part in parts))
