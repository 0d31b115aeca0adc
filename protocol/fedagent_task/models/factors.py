"""Matrix factorisation: a rating is what user and item have in common, plus biases."""

import numpy as np
import numpy.typing as npt

from .base import Doubles, Floats, Inputs, Labels, Shaped, Weights, densed

_INIT_DEVIATION = 0.1
"""Large enough to leave the saddle at zero, where neither factor has a slope."""

Ids = npt.NDArray[np.intp]


class Factors(Shaped):
    """Matrix factorisation with half the squared error; see `Model` for shapes.

    ``bias + user_bias[u] + item_bias[i] + users[u] · items[i]``; a sample's x is (u, i),
    whole numbers from 0. The penalty is that of the sample's two rows.
    """

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return small normal factors and zero biases."""
        rng = np.random.default_rng(seed)
        weights = {s.name: np.zeros(s.shape, np.float32) for s in self.manifest().specs}
        for name in ("users", "items"):
            shape = weights[name].shape
            weights[name] = rng.standard_normal(shape, np.float32) * np.float32(_INIT_DEVIATION)
        return weights

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return the predicted ratings, float64 [n, 1]."""
        user, item = _ids(x)
        p, q = weights["users"][user], weights["items"][item]
        return _ratings(weights, user, item, p, q)[:, None]

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return half the mean squared error, with the L2 penalty."""
        return self._parts(weights, x, y)[0]

    def loss_and_gradient(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, Floats]]:
        """Return both from one forward pass."""
        loss, slopes = self._parts(weights, x, y)
        gradient: dict[str, Floats] = {n: np.zeros_like(t) for n, t in weights.items()}
        for name, (at, slope) in slopes.items():
            np.add.at(gradient[name], at, slope.astype(gradient[name].dtype))
        return loss, gradient

    def descend(
        self, weights: dict[str, npt.NDArray[np.float32]], x: Inputs, y: Labels, rate: float
    ) -> float:
        """Move the weights one step down the gradient in place; return the loss before.

        Only the rows of the samples' users and items are touched.
        """
        loss, slopes = self._parts(weights, x, y)
        for name, (at, slope) in slopes.items():
            np.add.at(weights[name], at, (-rate * slope).astype(np.float32))
        return loss

    def _parts(
        self, weights: Weights, x: Inputs, y: Labels
    ) -> tuple[float, dict[str, tuple[Ids, Doubles]]]:
        """Return the loss, and for each tensor the rows and what each sample adds to them."""
        user, item = _ids(x)
        p, q = weights["users"][user].astype(np.float64), weights["items"][item].astype(np.float64)
        count, l2 = max(len(y), 1), self.spec.l2
        error = _ratings(weights, user, item, p, q) - y
        square = float(error @ error) + l2 * float(np.vdot(p, p) + np.vdot(q, q))
        share = error / count
        slopes = {
            "bias": (np.zeros(len(y), np.intp), share),
            "item_bias": (item, share),
            "items": (item, share[:, None] * p + (l2 / count) * q),
            "user_bias": (user, share),
            "users": (user, share[:, None] * q + (l2 / count) * p),
        }
        return 0.5 * square / count, slopes


def _ids(x: Inputs) -> tuple[Ids, Ids]:
    pairs = densed(x).astype(np.intp)
    return pairs[:, 0], pairs[:, 1]


def _ratings(weights: Weights, user: Ids, item: Ids, p: Floats, q: Floats) -> Doubles:
    common = np.einsum("nr,nr->n", p, q, dtype=np.float64)
    biases = weights["user_bias"][user] + weights["item_bias"][item] + weights["bias"]
    return np.asarray(common + biases, np.float64)
