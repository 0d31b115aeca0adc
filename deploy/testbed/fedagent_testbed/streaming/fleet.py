"""The devices of a streaming study: real learners on simulated streams."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedagent_agent.learners import Learner, Tensors, create
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.models import Floats
from fedagent_testbed.study.spec import TestbedRecipe

from .arrivals import RoundArrivals, make_arrivals
from .data import StreamData, held_out_loss, learner_spec, load_stream, make_model, values_of

_STREAM = 1 << 24
_ANY = 1 << 40
Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What a round of training was, device by device.

    Attributes:
        iterations: int64[N], done, over all arrival steps.
        looked_at: int64[N], samples looked at, counted each time.
        arrivals: int64[N].
        steps: |M_t|.
        squares: Sum of squared errors of samples before they were learnt, in the label's
            unit; 0 where that is not asked for.
        naive: The same of a model of zeros.
        tested: How many samples these sums are of.
        limited: Devices that the load limit stopped.
    """

    iterations: IntArray
    looked_at: IntArray
    arrivals: IntArray
    steps: int
    squares: float
    naive: float
    tested: int
    limited: int


class _Sums(NamedTuple):
    """Sums of a round, a number a device each: float64[N]."""

    iterations: FloatArray
    looked_at: FloatArray
    squares: FloatArray
    naive: FloatArray
    tested: FloatArray
    limited: FloatArray


class Fleet:
    """N devices that learn from their streams, and the global model.

    Args:
        recipe: With a streaming dataset.
        seed: Of the first model, the streams and the learners; never of decisions.
        alone: Nobody aggregates: every device keeps its own model.

    Raises:
        DatasetError: The data are not there.
        RecipeError: Model, learner and data do not go together.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int, *, alone: bool = False) -> None:
        settings = recipe.streaming
        self._settings, self._alone = settings, alone
        self._data = load_stream(settings)
        self._model = make_model(self._data, settings)
        spec = learner_spec(settings)
        try:
            self._learners: list[Learner] = [
                create(self._model, spec, _rng(seed, device)) for device in range(recipe.clients)
            ]
        except TaskFormatError as error:
            raise RecipeError("streaming.learner", str(error), "see docs/recipe.md") from error
        self._arrivals = make_arrivals(
            self._data, settings, devices=recipe.clients, rounds=recipe.rounds.count, seed=seed
        )
        first = self._model.init(seed)
        self._models: list[Weights] = [first] * recipe.clients

    @property
    def data(self) -> StreamData:
        """What is learnt."""
        return self._data

    @property
    def model_bytes(self) -> int:
        """Bytes of the model, float32."""
        return sum(tensor.nbytes for tensor in self._models[0].values())

    def train(self, round_: int, rho: int, most: FloatArray | None = None) -> Trained:
        """Let every device learn from the round's arrivals, and average the models.

        Args:
            round_: From 1, in order.
            rho: Iterations per arrival step; 0 leaves it to the learner.
            most: float64[N], samples that each device may look at, which is what its load
                limit pays for; None for no limit.
        """
        coming = self._arrivals.take(round_)
        sums = np.zeros((len(self._learners), len(_Sums._fields)))
        weight = np.zeros(len(self._learners), dtype=np.int64)
        deltas: list[Tensors] = []
        for device, learner in enumerate(self._learners):
            learner.begin(self._models[device])
            allowed = math.inf if most is None else float(most[device])
            sums[device] = self._steps(device, coming, rho, allowed)
            weight[device] = learner.num_samples
            deltas.append(learner.update())
        self._average(deltas, weight)
        whole = _Sums(*sums.T)
        return Trained(
            iterations=whole.iterations.astype(np.int64),
            looked_at=whole.looked_at.astype(np.int64),
            arrivals=coming.counts.sum(axis=1),
            steps=self._settings.steps,
            squares=float(whole.squares.sum()),
            naive=float(whole.naive.sum()),
            tested=int(whole.tested.sum()),
            limited=int(whole.limited.sum()),
        )

    def loss(self) -> float:
        """Return the mean loss on the samples that never arrive; infinite after divergence.

        Of lone models it is the mean.
        """
        models = self._models if self._alone else self._models[:1]
        count = self._settings.test_samples
        losses = [held_out_loss(self._model, one, self._data, count) for one in models]
        loss = float(np.mean(losses))
        return loss if math.isfinite(loss) else math.inf

    def _steps(
        self, device: int, coming: RoundArrivals, rho: int, most: float
    ) -> tuple[float, ...]:
        """Do one device's arrival steps; return the fields of `_Sums`."""
        learner, data = self._learners[device], self._data
        stops = np.cumsum(coming.counts[device]).tolist()
        x, y = data.rows(coming.samples[device])
        iterations = looked_at = tested = start = 0
        squares = naive = 0.0
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
        return iterations, looked_at, squares, naive, tested, limited

    def _surprise(self, device: int, x: Floats, y: FloatArray) -> float:
        """Return the sum of squared errors of samples that the device has not learnt yet."""
        base, change = self._models[device], self._learners[device].update()
        now = {name: tensor + change[name] for name, tensor in base.items()}
        error = (values_of(self._model, now, x) - y) * self._data.unit
        return float(error @ error)

    def _average(self, deltas: list[Tensors], weight: IntArray) -> None:
        """Move the models: all by the weighted mean of the changes, or each by its own."""
        if self._alone:
            self._models = [
                {name: tensor + delta[name] for name, tensor in model.items()}
                for model, delta in zip(self._models, deltas, strict=True)
            ]
            return
        total = int(weight.sum())
        if total:
            merged = _moved(self._models[0], deltas, weight / total)
            self._models = [merged] * len(self._learners)


def _affordable(room: float, iterations: int, looked_at: int) -> int:
    """Return how many iterations may look at `room` samples; the first of a round is free."""
    if not iterations:
        room = max(room, 1.0)
    each = max(1.0, looked_at / max(iterations, 1))
    return _ANY if math.isinf(room) else max(0, int(room / each))


def _moved(
    model: Mapping[str, npt.NDArray[np.float32]], deltas: list[Tensors], share: FloatArray
) -> Weights:
    """Return a model moved by the changes' weighted mean, summed in float64."""
    moved: Weights = {}
    for name, tensor in model.items():
        total = tensor.astype(np.float64)
        for part, delta in zip(share.tolist(), deltas, strict=True):
            total += part * delta[name]
        moved[name] = total.astype(np.float32)
    return moved


def _rng(seed: int, device: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM, device)))
