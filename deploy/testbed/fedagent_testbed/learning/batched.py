"""Models of the task package for many clients at once: flat parameters in, flat gradients out.

Everything has a leading axis of S clients and is one batched product. Scores are
[S, classes, B]: reductions over classes then run along whole rows of memory.
"""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Model

Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Layers = list[tuple[Array, Array]]
"""Views of each layer's bias [S, outputs] and weight [S, outputs, inputs]."""


class BatchedModel:
    """A softmax, svm or mlp of the task package as functions of parameters flat as its manifest.

    An svm has the loss of Crammer and Singer (largest margin violation): the GDA paper says "SVM"
    and no more.

    Shapes: theta [S, size], x [S, B, features], y int64[S, B], weight [S, B]: what each sample
    counts (1 / batch for a mean, 0 for padding); float32, or float64 throughout.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._margin = model.spec.kind == "svm"
        self._l2 = model.spec.l2
        shapes = [spec.shape for spec in model.manifest().specs]
        self._shapes = shapes[1::2]
        self.features, self.classes = shapes[1][1], shapes[-1][0]
        self.size = model.spec.parameters

    def init(self, seed: int) -> npt.NDArray[np.float32]:
        """Return the model's starting weights, float32[size]."""
        weights = self._model.init(seed)
        return np.concatenate([weights[one.name].ravel() for one in self._model.manifest().specs])

    def scores(self, theta: Array, x: Array) -> Array:
        """Return the score of each class, [S, classes, B]; the largest one is predicted."""
        return self._forward(self._layers(theta), x)[-1]

    def gradient(self, theta: Array, x: Array, y: Labels, weight: Array, out: Array) -> None:
        """Write the gradient of the weighted loss to out [S, size]."""
        layers, slopes = self._layers(theta), self._layers(out)
        *seen, residual = self._forward(layers, x)
        _to_residual(residual, y, weight, margin=self._margin)
        for index in range(len(layers) - 1, -1, -1):
            np.matmul(residual, seen[index].transpose(0, 2, 1), out=slopes[index][1])
            residual.sum(axis=2, out=slopes[index][0])
            if index:
                residual = layers[index][1].transpose(0, 2, 1) @ residual
                residual *= seen[index] > 0
            if self._l2:
                slopes[index][1].__iadd__(theta.dtype.type(self._l2) * layers[index][1])

    def _layers(self, theta: Array) -> Layers:
        layers, at = [], 0
        for outputs, inputs in self._shapes:
            middle, end = at + outputs, at + outputs * (1 + inputs)
            weight = theta[:, middle:end].reshape(len(theta), outputs, inputs)
            layers.append((theta[:, at:middle], weight))
            at = end
        return layers

    def _forward(self, layers: Layers, x: Array) -> list[Array]:
        """Return what each layer sees, [S, inputs, B], and the scores at the end."""
        seen: list[Array] = [x.transpose(0, 2, 1)]
        for index, (bias, weight) in enumerate(layers, 1):
            z = weight @ seen[-1]
            z += bias[:, :, None]
            if index < len(layers):
                np.maximum(z, 0, out=z)
            seen.append(z)
        return seen


def _to_residual(z: Array, y: Labels, weight: Array, *, margin: bool) -> None:
    """Turn scores into d(weighted loss)/d(scores), in place."""
    s, b = y.shape
    clients, samples = np.arange(s)[:, None], np.arange(b)[None, :]
    true = clients, y, samples
    if margin:
        z[true] -= 1.0
        rival = clients, z.argmax(axis=1), samples
        z[...] = 0.0
        z[rival] = weight
        z[true] -= weight
    else:
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[true] -= 1.0
        z *= weight[:, None]
