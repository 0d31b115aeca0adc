"""strSAGA as its definition says it: every stored gradient in full, every mean anew."""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels, Model, create
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

Doubles = npt.NDArray[np.float64]
Gradient = dict[str, Doubles]
SIZES = ("users", "items", "rank", "classes", "loss")


class NaiveStrSaga:
    """ALGORITHMS section 7, without any of the shortcuts of the product."""

    def __init__(self, model: Model, spec: LearnerSpec, rng: np.random.Generator) -> None:
        plain = model.spec
        self._plain = create(
            ModelSpec(
                kind=plain.kind,
                features=plain.features,
                **{name: getattr(plain, name) for name in SIZES},
            )
        )
        self._model, self._spec, self._rng = model, spec, rng
        self._buffer: list[tuple[Doubles, float]] = []
        self._set: list[tuple[Doubles, float, Gradient]] = []
        self._z = self._seen = 0
        self.weights: dict[str, Doubles] = {}
        self.losses: list[float] = []

    def begin(self, base: dict[str, npt.NDArray[np.float32]]) -> None:
        self.weights = {name: tensor.astype(np.float64) for name, tensor in base.items()}
        self._set, self._z, self._seen = [], 0, 0

    def absorb(self, x: Inputs, y: Labels) -> None:
        rows = x if isinstance(x, np.ndarray) else x.dense()
        self._buffer = [
            (row[None].astype(np.float64), float(label)) for row, label in zip(rows, y, strict=True)
        ]

    def step(self, iterations: int) -> None:
        for _ in range(iterations):
            self._once(*self._rng.random(3))

    def _once(self, moving: float, keeping: float, drawing: float) -> None:
        self._z += 1
        if self._z % 2 == 0 and self._buffer:
            chosen = int(moving * len(self._buffer))
            self._buffer[chosen], self._buffer[-1] = self._buffer[-1], self._buffer[chosen]
            x, y = self._buffer.pop()
            self._seen += 1
            nothing = {name: np.zeros_like(tensor) for name, tensor in self.weights.items()}
            if len(self._set) < self._spec.cap:
                self._set.append((x, y, nothing))
            elif (place := int(keeping * self._seen)) < self._spec.cap:
                self._set[place] = (x, y, nothing)
        if self._set:
            self._descend(int(drawing * len(self._set)))

    def _descend(self, i: int) -> None:
        x, y, delta = self._set[i]
        label = np.array([y])
        self.losses.append(self._plain.loss(self.weights, x, label))
        sigma = self._plain.loss_and_gradient(self.weights, x, label)[1]
        full = self._model.loss_and_gradient(self.weights, x, label)[1]
        mean = {
            name: np.mean([gradient[name] for _, _, gradient in self._set], axis=0)
            for name in self.weights
        }
        self._set[i] = (x, y, {name: slope.astype(np.float64) for name, slope in sigma.items()})
        for name, tensor in self.weights.items():
            penalty = full[name] - sigma[name]
            down = sigma[name] - delta[name] + mean[name] + penalty
            self.weights[name] = tensor - self._spec.rate * down
