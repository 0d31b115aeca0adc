"""The learning side of a study: edge models that the chosen clients move."""

import functools

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.learning.averaging import merged
from fedagent_testbed.learning.datasets import LearningData
from fedagent_testbed.learning.datasets import load as load_data
from fedagent_testbed.learning.models import Linear, Mlp, Model
from fedagent_testbed.learning.partition import Partition, dirichlet, few_labels, iid, iid_for
from fedagent_testbed.learning.trainer import FederatedTrainer

from .spec import TestbedRecipe, Training

_cached = functools.lru_cache(maxsize=2)(load_data)


class Learner:
    """Trains what a recipe says; one model per edge, merged every T_ES rounds.

    Args:
        recipe: With a dataset.
        seed: Of the partition, the batches and the first model.

    Raises:
        DatasetError: The data are not there; the message says the hint.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        training = recipe.training
        data = _cached(training.dataset)
        partition = _partition(training, data.y, recipe.clients, seed)
        self._recipe = recipe
        self._trainer = FederatedTrainer(
            data,
            partition,
            _model(training, data),
            learning_rate=training.rate,
            batch_size=training.batch,
            epochs=training.epochs,
            local_steps=training.local_steps,
            held_out=0.2 if training.opinions else 0.0,
            seed=seed,
        )
        self._first = self._trainer.initial(recipe.edges)
        self._models = self._first

    def advance(self, feedback: Feedback) -> None:
        """Train the clients whose updates are used, and merge when it is time."""
        view, recipe = feedback.view, self._recipe
        training = recipe.training
        begins = (view.round - 1) % training.slot_rounds == 0
        start = self._first if training.reset and begins else self._models
        pairs = feedback.pairs[feedback.used]
        # Strangers bring data of their own; there are no more than these to deal.
        clients = view.pair_client[pairs] % recipe.clients
        self._models = self._trainer.aggregate(
            start, clients, view.pair_edge[pairs], view.round, recipe.training.weighting
        )
        if view.round % recipe.rounds.merge_every == 0 and recipe.edges > 1:
            self._models = merged(self._models)

    @property
    def model(self) -> npt.NDArray[np.float32]:
        """The mean of the edges' models, float32[d]."""
        return np.asarray(self._models.mean(axis=0), dtype=np.float32)

    def accuracy(self) -> float:
        """Return the accuracy of the mean model on the common test set."""
        return self._trainer.accuracy(self.model)

    def opinions(self) -> FloatArray:
        """Return every client's score of the mean model, float64[N]."""
        on_test = self._recipe.training.evaluated_on == "test"
        evaluate = self._trainer.opinions_on_test if on_test else self._trainer.opinions
        return evaluate(self.model)


def _partition(
    training: Training, labels: npt.NDArray[np.int64], clients: int, seed: int
) -> Partition:
    """Deal the samples."""
    size = training.samples_per_client
    match training.partition:
        case "two-labels":
            return few_labels(labels, clients, seed=seed, samples_per_client=size)
        case "iid":
            return iid(labels, clients, seed=seed, samples_per_client=size)
        case "dirichlet":
            gamma = training.gamma
            return dirichlet(labels, clients, gamma=gamma, seed=seed, samples_per_client=size)
        case "iid-for":
            first = range(min(training.iid_clients, clients))
            return iid_for(labels, clients, iid_clients=first, seed=seed, samples_per_client=size)


def _model(training: Training, data: LearningData) -> Model:
    """Make the model of a recipe."""
    match training.model:
        case "softmax":
            return Linear(data.features, data.classes)
        case "svm":
            return Linear(data.features, data.classes, loss_kind="crammer-singer")
        case "mlp":
            return Mlp(data.features, data.classes)
