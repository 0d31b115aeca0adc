"""Models of many clients at once: flat parameters in, flat gradients out.

Everything has a leading axis of S clients and is one batched product. Scores are
[S, classes, B]: reductions over classes then run along whole rows of memory.
float32 throughout; with float64 parameters and samples all is float64 (for tests).
"""

from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np
import numpy.typing as npt

from .errors import SettingError
from .losses import Array, Labels, Loss, losses, to_residual

_INIT_DEVIATION = 0.01


class Model(Protocol):
    """A classifier as functions of flat parameters.

    Shapes: theta [S, size], x [S, B, features], y int64[S, B], weight [S, B]: what
    each sample counts (1 / batch for a mean, 0 for padding).
    """

    @property
    def features(self) -> int:
        """Numbers per sample."""
        ...

    @property
    def classes(self) -> int:
        """Number of classes."""
        ...

    @property
    def size(self) -> int:
        """Number of parameters d."""
        ...

    def init(self, seed: int) -> npt.NDArray[np.float32]:
        """Return starting parameters float32[size], the same for the same seed."""
        ...

    def scores(self, theta: Array, x: Array) -> Array:
        """Return the score of each class, [S, classes, B]; the largest one is predicted."""
        ...

    def loss(self, theta: Array, x: Array, y: Labels, weight: Array) -> npt.NDArray[np.float64]:
        """Return each client's weighted loss with its penalty, float64[S]."""
        ...

    def gradient(self, theta: Array, x: Array, y: Labels, weight: Array, out: Array) -> None:
        """Write the gradient of `loss` to out [S, size]."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """An affine map under a loss: softmax regression or a multi-class linear SVM.

    Flat order as in the product's own models: bias [classes], weight [classes, features].

    Attributes:
        features: Numbers per sample.
        classes: Number of classes.
        loss_kind: ``softmax`` (cross-entropy), ``crammer-singer`` (largest margin
            violation) or ``one-vs-rest`` (sum of the classes' hinges). The GDA paper
            says "SVM" and no more.
        l2: Penalty 0.5 * l2 * |weight|^2; biases are free.
    """

    features: int
    classes: int
    loss_kind: Loss = "softmax"
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no model."""
        _check(self.features, self.classes, self.l2)
        if self.loss_kind not in get_args(Loss):
            known = ", ".join(get_args(Loss))
            raise SettingError("loss_kind", f"is {self.loss_kind!r}", f"take one of {known}")

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return self.classes * (1 + self.features)

    def init(self, seed: int) -> npt.NDArray[np.float32]:
        """Return small normal weights and zero biases, float32[size]."""
        theta = np.zeros(self.size, np.float32)
        rng = np.random.default_rng(seed)
        theta[self.classes :] = _normal(rng, self.size - self.classes, _INIT_DEVIATION)
        return theta

    def split(self, theta: Array) -> tuple[Array, Array]:
        """Return views: bias [S, classes], weight [S, classes, features]."""
        weight = theta[:, self.classes :].reshape(len(theta), self.classes, self.features)
        return theta[:, : self.classes], weight

    def scores(self, theta: Array, x: Array) -> Array:
        """Return the score of each class, [S, classes, B]."""
        bias, weight = self.split(theta)
        z = weight @ x.transpose(0, 2, 1)
        z += bias[:, :, None]
        return z

    def loss(self, theta: Array, x: Array, y: Labels, weight: Array) -> npt.NDArray[np.float64]:
        """Return each client's weighted loss with its penalty, float64[S]."""
        each = losses(self.loss_kind, self.scores(theta, x), y)
        return np.asarray((each * weight).sum(axis=1) + _penalty(self.l2, self.split(theta)[1]))

    def gradient(self, theta: Array, x: Array, y: Labels, weight: Array, out: Array) -> None:
        """Write the gradient of `loss` to out [S, size]."""
        residual = self.scores(theta, x)
        to_residual(self.loss_kind, residual, y, weight)
        bias, slope = self.split(out)
        np.matmul(residual, x, out=slope)
        residual.sum(axis=2, out=bias)
        if self.l2:
            slope += theta.dtype.type(self.l2) * self.split(theta)[1]


@dataclass(frozen=True, slots=True)
class Mlp:
    """One hidden layer of rectified units under a softmax.

    Flat order: hidden bias [hidden], hidden weight [hidden, features], bias
    [classes], weight [classes, hidden].
    """

    features: int
    classes: int
    hidden: int = 32
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no model."""
        _check(self.features, self.classes, self.l2)
        if self.hidden < 1:
            raise SettingError("hidden", f"is {self.hidden}", "have at least one unit")

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return self.hidden * (1 + self.features) + self.classes * (1 + self.hidden)

    def init(self, seed: int) -> npt.NDArray[np.float32]:
        """Return weights of deviation sqrt(2 / inputs) and zero biases, float32[size]."""
        theta = np.zeros((1, self.size), np.float32)
        rng = np.random.default_rng(seed)
        _, first, _, second = self.split(theta)
        for weight in (first, second):
            deviation = (2.0 / weight.shape[2]) ** 0.5
            weight[...] = _normal(rng, weight.size, deviation).reshape(weight.shape)
        return np.asarray(theta[0], np.float32)

    def split(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Return views in the flat order, each with the leading axis S."""
        s, h, c, f = len(theta), self.hidden, self.classes, self.features
        first, second = h + h * f, h + h * f + c
        w1 = theta[:, h:first].reshape(s, h, f)
        w2 = theta[:, second:].reshape(s, c, h)
        return theta[:, :h], w1, theta[:, first:second], w2

    def scores(self, theta: Array, x: Array) -> Array:
        """Return the score of each class, [S, classes, B]."""
        return self._forward(theta, x)[1]

    def loss(self, theta: Array, x: Array, y: Labels, weight: Array) -> npt.NDArray[np.float64]:
        """Return each client's weighted loss with its penalty, float64[S]."""
        _, w1, _, w2 = self.split(theta)
        each = losses("softmax", self.scores(theta, x), y)
        penalty = _penalty(self.l2, w1) + _penalty(self.l2, w2)
        return np.asarray((each * weight).sum(axis=1) + penalty)

    def gradient(self, theta: Array, x: Array, y: Labels, weight: Array, out: Array) -> None:
        """Write the gradient of `loss` to out [S, size]."""
        hidden, residual = self._forward(theta, x)
        to_residual("softmax", residual, y, weight)
        _, w1, _, w2 = self.split(theta)
        g_b1, g_w1, g_b2, g_w2 = self.split(out)
        np.matmul(residual, hidden.transpose(0, 2, 1), out=g_w2)
        residual.sum(axis=2, out=g_b2)
        back = w2.transpose(0, 2, 1) @ residual
        back *= hidden > 0
        np.matmul(back, x, out=g_w1)
        back.sum(axis=2, out=g_b1)
        if self.l2:
            g_w1 += theta.dtype.type(self.l2) * w1
            g_w2 += theta.dtype.type(self.l2) * w2

    def _forward(self, theta: Array, x: Array) -> tuple[Array, Array]:
        """Return the hidden units [S, hidden, B] and the scores [S, classes, B]."""
        b1, w1, b2, w2 = self.split(theta)
        hidden = w1 @ x.transpose(0, 2, 1)
        hidden += b1[:, :, None]
        np.maximum(hidden, 0, out=hidden)
        z = w2 @ hidden
        z += b2[:, :, None]
        return hidden, z


def _check(features: int, classes: int, l2: float) -> None:
    """Refuse what is no model."""
    if features < 1 or classes < 2:
        what = f"{features} features and {classes} classes"
        raise SettingError("model", f"has {what}", "have at least 1 and 2")
    if not 0 <= l2 < float("inf"):
        raise SettingError("l2", f"is {l2}", "take a number from 0 up")


def _normal(rng: np.random.Generator, count: int, deviation: float) -> npt.NDArray[np.float32]:
    """Return normal float32[count] of mean 0."""
    return rng.standard_normal(count, dtype=np.float32) * np.float32(deviation)


def _penalty(l2: float, weight: Array) -> npt.NDArray[np.float64]:
    """Return 0.5 * l2 * |weight|^2 of each client, float64[S]."""
    return np.asarray(0.5 * l2 * np.square(weight, dtype=np.float64).sum(axis=(1, 2)))
