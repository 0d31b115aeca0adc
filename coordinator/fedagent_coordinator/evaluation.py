"""Judging the global model on held-out data that the coordinator has itself."""

from dataclasses import dataclass

import numpy as np

from fedagent_protocol.tensors import Buffer, decode_tensors
from fedagent_task import models
from fedagent_task.features import expect_fit, scaled
from fedagent_task.metrics import Evaluation, evaluate
from fedagent_task.readers import Dataset, load
from fedagent_task.spec import Recipe

NONE = "none"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A held-out set, scaled and checked once."""

    model: models.Model
    x: models.Floats
    y: models.Labels

    def judge(self, data: Buffer) -> Evaluation:
        """Return how good a model is.

        Args:
            data: Its safetensors bytes.

        Raises:
            ProtocolError: The bytes are no such model.
        """
        tensors = decode_tensors(data, self.model.manifest())
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        return evaluate(self.model, weights, self.x, self.y)


def held_out(recipe: Recipe) -> HeldOut | None:
    """Load the recipe's held-out set; None if it has none.

    Raises:
        DatasetError: It is missing, malformed, or does not fit the model.
    """
    name = recipe.evaluation.dataset
    if name == NONE:
        return None
    dataset: Dataset = load(name, features=recipe.model.features)
    x = scaled(dataset.x, recipe.data)
    expect_fit(name, x, dataset.y, recipe.model)
    return HeldOut(models.create(recipe.model), x, dataset.y)
