"""Convolutional networks in federated studies: clients train one by one, as live agents do."""

import math

import numpy as np
from msgspec import structs

from fedagent_agent.learners import create
from fedagent_agent.learners.steps import by_torch
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.models import create as create_model
from fedagent_task.recipe.shapes import pooled
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from fedagent_testbed.recipe import Training

from .local_sgd import Floats, Indices

_IMPOSSIBLE = 1e-300
"""Least probability of which a logarithm is taken."""


class Network:
    """A network of the task package as functions of parameters flat as its manifest.

    The learner is `minibatch` of live agents, in which torch computes the gradients in one
    thread; it has seen none but the client's samples, and passes over them `epochs` times.

    Raises:
        RecipeError: torch is missing, or the recipe does not fit a network.
    """

    def __init__(self, training: Training, *, features: int, classes: int) -> None:
        spec = _spec(training, features, classes)
        self._learner = LearnerSpec(
            name="minibatch",
            rate=training.rate,
            batch=training.batch,
            backend="torch",
            device="cpu",
            threads=1,
        )
        self._model = create_model(spec)
        try:
            by_torch(self._model, self._learner)
        except TaskFormatError as error:
            hint = "install the extra `torch` (docs/quickstart.md), or take training.model = mlp"
            raise RecipeError(
                "world.training.model", "is cnn, and torch is not here", hint
            ) from error
        from fedagent_agent.learners.torch_steps import TorchNetwork  # noqa: PLC0415 - 200 MB

        self._network = TorchNetwork(spec)
        self._epochs = training.epochs
        self._shapes = {one.name: one.shape for one in self._model.manifest().specs}
        self.size = spec.parameters

    def init(self, seed: int) -> Floats:
        """Return the model's starting weights, float32[size]."""
        return self._flat(self._model.init(seed))

    def predicted(self, theta: Floats, x: Floats) -> Indices:
        """Return the class of each sample, int64[n], by parameters float32[size]."""
        return np.asarray(self._network.forward(self._tensors(theta), x).argmax(axis=1), np.int64)

    def losses(self, theta: Floats, x: Floats, y: Indices) -> Floats:
        """Return the cross-entropy of each sample, float32[n], by parameters float32[size]."""
        chance = self._model.forward(self._tensors(theta), x)[np.arange(len(y)), y]
        return np.asarray(-np.log(np.maximum(chance, _IMPOSSIBLE)), np.float32)

    def trained(self, theta: Floats, x: Floats, y: Indices, rng: np.random.Generator) -> Floats:
        """Return what a client makes of parameters float32[size]; without samples the same."""
        # A client's memory is its samples: the ring is as large as they are.
        sized = structs.replace(self._learner, buffer=max(1, len(y)))
        learner = create(self._model, sized, rng)
        learner.begin(self._tensors(theta))
        learner.absorb(x, y)
        learner.step(self._epochs)
        return theta + self._flat(learner.update())

    def _tensors(self, theta: Floats) -> dict[str, Floats]:
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(theta, ends[:-1])
        both = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in both}

    def _flat(self, tensors: dict[str, Floats]) -> Floats:
        return np.concatenate([tensors[name].ravel() for name in self._shapes])


def _spec(training: Training, features: int, classes: int) -> ModelSpec:
    side = math.isqrt(features)
    spec = ModelSpec(
        kind="cnn",
        features=features,
        classes=classes,
        layout=training.layout,
        image=(side, side, 1),
    )
    if min(pooled(spec.plan, spec.picture)) < 1:
        wrong = f"is cnn, and images of {side} x {side} are too small for two convolutions"
        raise RecipeError(
            "world.training.model", wrong, "take world.training.dataset = mnist, or another model"
        )
    return spec
