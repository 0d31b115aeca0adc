"""The learning side of a study: edge models that the chosen clients move."""

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback
from fedagent_coordinator.policies.base import FloatArray
from fedagent_task.models import create
from fedagent_task.spec import ModelSpec
from fedagent_testbed.recipe import TestbedRecipe, Training

from .batched import BatchedModel
from .datasets import load_classes
from .local_sgd import Floats
from .partition import Partition, dirichlet, few_labels, iid, iid_for
from .trainer import FederatedTrainer, merged

HIDDEN = 32
"""Units of the mlp's one hidden layer."""


class FederatedLearner:
    """Federated training by a recipe: one model per edge, merged every T_ES rounds.

    Raises:
        DatasetError: The data are not there.
        RecipeError: They cannot be dealt to so many clients.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        training = recipe.training
        data = load_classes(training.dataset)
        hidden = (HIDDEN,) if training.model == "mlp" else ()
        spec = ModelSpec(
            kind=training.model, features=data.features, classes=data.classes, hidden=hidden
        )
        self._recipe = recipe
        self._trainer = FederatedTrainer(
            data,
            _partition(training, data.y.astype(np.int64), recipe.clients, seed),
            BatchedModel(create(spec)),
            training,
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
        # Newcomers hold another client's data: there are no more to deal.
        clients = view.pair_client[pairs] % recipe.clients
        self._models = self._trainer.aggregate(
            start, clients, view.pair_edge[pairs], view.round, training.weighting
        )
        if view.round % recipe.rounds.merge_every == 0 and recipe.edges > 1:
            self._models = merged(self._models)

    @property
    def model(self) -> Floats:
        """The mean of the edges' models, float32[d]."""
        return np.asarray(self._models.mean(axis=0), dtype=np.float32)

    def accuracy(self) -> float:
        """Return the accuracy of the mean model on the common test set."""
        return self._trainer.accuracy(self.model)

    def opinions(self) -> FloatArray:
        """Return every client's score of the mean model, float64[N]."""
        if self._recipe.training.evaluated_on == "test":
            return self._trainer.opinions_on_test(self.model)
        return self._trainer.opinions(self.model)


def _partition(
    training: Training, labels: npt.NDArray[np.int64], clients: int, seed: int
) -> Partition:
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
