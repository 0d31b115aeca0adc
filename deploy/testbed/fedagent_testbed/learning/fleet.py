"""The devices of a streaming study: whatever a live device can learn, on simulated streams."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from fedagent_agent.learners import Learner, Tensors, create
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.models import Floats, Model
from fedagent_task.models import create as create_model
from fedagent_task.recipe.spec import LEARNERS, LearnerSpec, ModelSpec
from fedagent_task.recipe.task_checks import unknown
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.worlds.base import spawned_rng

from .arrivals import Drift, RoundArrivals, make_arrivals
from .datasets import StudyData, load_data

_STREAM = 1 << 24
_ANY = 1 << 40
Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class FleetRound:
    """A round of training, a number a device: float64[N] each.

    Attributes:
        squares: Sum of squared errors of samples before they were learnt, in the label's
            unit; 0 where that is not asked for. `naive` is that of a model of zeros.
    """

    iterations: FloatArray  # done, over all arrival steps
    looked_at: FloatArray  # samples looked at, counted each time
    squares: FloatArray
    naive: FloatArray
    tested: FloatArray  # how many samples these sums are of
    limited: FloatArray  # 1 where the load limit stopped the device
    loss: FloatArray  # mean over the training, each sample before its step; NaN of nothing
    arrivals: IntArray
    steps: int


class Fleet:
    """N devices that learn from their streams, and the global model.

    Args:
        seed: Of the first model, the streams and the learners; never of decisions.
        alone: No aggregation: every device keeps its own model.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int, *, alone: bool = False) -> None:
        settings = recipe.world.streaming
        self._settings, self._alone = settings, alone
        self.data = load_data(settings.dataset)
        self._model = make_model(self.data, recipe.model)
        spec = learner_spec(recipe.learner)
        try:
            self._learners: list[Learner] = [
                create(self._model, spec, spawned_rng(seed, _STREAM, device))
                for device in range(recipe.world.clients)
            ]
        except TaskFormatError as error:
            raise RecipeError("learner", str(error), "see docs/recipe.md") from error
        self._arrivals = make_arrivals(
            self.data, settings, devices=recipe.world.clients, rounds=recipe.rounds.count, seed=seed
        )
        self._drift = Drift(self.data, settings, rounds=recipe.rounds.count, seed=seed)
        self._models: list[Weights] = [self._model.init(seed)] * recipe.world.clients

    @property
    def model_bytes(self) -> int:
        """Bytes of the model, float32."""
        return sum(tensor.nbytes for tensor in self._models[0].values())

    def train(self, round_: int, rho: int | IntArray, most: FloatArray | None = None) -> FleetRound:
        """Let every device learn from the round's arrivals, and average the models.

        Args:
            round_: From 1, in order.
            rho: Iterations per arrival step, or int64[N]; 0 leaves it to the learner.
            most: float64[N], samples that a device's load limit pays for; None for no limit.
        """
        coming = self._arrivals.take(round_)
        self._drift.begin(round_)
        each = np.broadcast_to(rho, len(self._learners)).tolist()
        sums: list[tuple[float, ...]] = []
        weight = np.zeros(len(self._learners), dtype=np.int64)
        deltas: list[Tensors] = []
        for device, learner in enumerate(self._learners):
            learner.begin(self._models[device])
            allowed = math.inf if most is None else float(most[device])
            sums.append(self._steps(device, coming, each[device], allowed))
            weight[device] = learner.num_samples
            deltas.append(learner.update())
        self._average(deltas, weight)
        columns = np.array(sums, dtype=np.float64).T
        return FleetRound(*columns, coming.counts.sum(axis=1), self._settings.steps)  # type: ignore[call-arg] # seven columns

    def loss(self) -> float:
        """Return the loss on test samples; infinite if it diverged, a mean over lone models."""
        x, y = self._drift.tests(self._settings.test_samples)
        models = self._models if self._alone else self._models[:1]
        loss = float(np.mean([self._model.loss(one, x, y) for one in models]))
        return loss if math.isfinite(loss) else math.inf

    def _steps(
        self, device: int, coming: RoundArrivals, rho: int, most: float
    ) -> tuple[float, ...]:
        learner, data = self._learners[device], self.data
        stops = np.cumsum(coming.counts[device]).tolist()
        x, y = self._drift.rows(coming.samples[device])
        iterations = looked_at = tested = start = 0
        squares = naive = lost = 0.0
        limited = False
        for stop in stops:
            new_x, new_y = x[start:stop], y[start:stop]
            if self._settings.prequential and stop > start:
                squares += self._surprise(device, new_x, new_y)
                naive += float((new_y * data.unit) @ (new_y * data.unit))
                tested += stop - start
            # Also when nothing came: a learner's buffer is of this step only.
            learner.absorb(new_x, new_y)
            start = stop
            wanted = rho or learner.default_iterations
            paid = _affordable(most - looked_at, iterations, looked_at)
            limited = limited or paid < wanted
            result = learner.step(min(wanted, paid))
            iterations += result.iterations
            looked_at += result.samples
            lost += result.loss * result.samples
        loss = lost / looked_at if looked_at else math.nan
        return iterations, looked_at, squares, naive, tested, limited, loss

    def _surprise(self, device: int, x: Floats, y: FloatArray) -> float:
        now = _added(self._models[device], self._learners[device].update())
        value = self._model.forward(now, x)[:, 0]
        error = (value - y) * self.data.unit
        return float(error @ error)

    def _average(self, deltas: list[Tensors], weight: IntArray) -> None:
        total = int(weight.sum())
        if self._alone:
            both = zip(self._models, deltas, strict=True)
            self._models = [_added(model, delta) for model, delta in both]
        elif total:
            merged = _moved(self._models[0], deltas, weight / total)
            self._models = [merged] * len(self._learners)


def make_model(data: StudyData, own: Mapping[str, object]) -> Model:
    """Return the model of a study: the dataset's, with the recipe's keys over it."""
    try:
        return create_model(msgspec.convert({**data.model, **own}, ModelSpec))
    except (msgspec.ValidationError, TaskFormatError, RecipeError) as error:
        raise RecipeError("model", str(error), "see docs/recipe.md, model") from error


def learner_spec(own: Mapping[str, object]) -> LearnerSpec:
    """Return the learner of a study: mini-batches of strSAGA's rate unless the recipe sets it."""
    try:
        spec = msgspec.convert({"rate": 0.2, **own}, LearnerSpec)
    except msgspec.ValidationError as error:
        raise RecipeError("learner", str(error), "see docs/recipe.md, learner") from error
    for wrong in unknown("learner.name", spec.name, LEARNERS):
        raise RecipeError(*wrong)
    return spec


def _affordable(room: float, iterations: int, looked_at: int) -> int:
    """Return how many iterations may look at `room` samples; the first of a round is free."""
    if not iterations:
        room = max(room, 1.0)
    each = max(1.0, looked_at / max(iterations, 1))
    return _ANY if math.isinf(room) else max(0, int(room / each))


def _added(model: Weights, delta: Tensors) -> Weights:
    return {name: tensor + delta[name] for name, tensor in model.items()}


def _moved(
    model: Mapping[str, npt.NDArray[np.float32]], deltas: list[Tensors], share: FloatArray
) -> Weights:
    moved: Weights = {}
    for name, tensor in model.items():
        total = tensor.astype(np.float64)
        for part, delta in zip(share.tolist(), deltas, strict=True):
            total += part * delta[name]
        moved[name] = total.astype(np.float32)
    return moved
