"""How good a global model is on held-out samples: data that the coordinator has itself."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Buffer
from fedagent_task import models
from fedagent_task.models.features import expect_fit, expect_width, scaled
from fedagent_task.models.graph import Graph
from fedagent_task.readers import Dataset, load
from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.graph import ScoredGraph, scored
from fedagent_task.scoring.measures import NO_DATASET
from fedagent_task.scoring.metrics import Evaluation, evaluate
from fedagent_task.task_file import TaskFile
from fedagent_task.travelling import model_tensors

Tensors = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """A held-out set, scaled and checked once."""

    model: models.Model
    x: models.Floats
    y: models.Labels

    def evaluate(self, data: Buffer) -> Evaluation:
        """Return how good the model in these safetensors bytes is."""
        tensors = model_tensors(data, self.model.manifest())
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        if isinstance(self.model, ScoredGraph):
            return self.model.evaluate(weights, self.x, self.y)
        return evaluate(self.model, weights, self.x, self.y)


def held_out(recipe: Recipe, task: TaskFile | None = None) -> HeldOutSet | None:
    """Load the recipe's held-out set; None if it has none, or if nothing here can score by it."""
    name = recipe.evaluation.dataset
    if name == NO_DATASET:
        return None
    dataset: Dataset = load(name, features=recipe.model.features)
    expect_width(name, dataset.x, recipe.model)
    x = scaled(dataset.x, recipe.data)
    expect_fit(name, x, dataset.y, recipe.model)
    model: models.Model | None = models.create(recipe.model)
    if isinstance(model, Graph) and task is not None:
        model = scored(model, task.once, task.onnx)
        if model is not None and len(x):
            model.forward(task.first, x[:1])  # what it cannot is told at the start
    return None if model is None else HeldOutSet(model, x, dataset.y)
