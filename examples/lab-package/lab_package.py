"""Two things of a lab's own: who trains (`strongest`), and what is learnt (`lab-package:huber`)."""

import numpy as np

from fedagent_coordinator.policies import StatelessPolicy, explained, fill
from fedagent_task.models.generalised_linear import Linear


class StrongestPolicy(StatelessPolicy):
    """The devices that hear the access point best; who does not say so comes last."""

    name = "strongest"
    needs = frozenset()

    def select(self, view, rng):
        """Choose by signal, ties by chance, while the budgets last."""
        signal = np.nan_to_num(view.optional("signal_dbm"), nan=-120.0)
        order = np.lexsort((rng.random(len(signal)), -signal))
        return explained(view, fill(view, order), signal)


class Huber(Linear):
    """A regression that a broken sensor cannot drag away: an error counts up to `delta` in full."""

    def loss(self, weights, x, y):
        """Return Huber's loss: half the square of small errors, the amount of large ones."""
        delta = float(self.spec.params.get("delta", 1.0))
        error = np.abs(self.forward(weights, x)[:, 0] - y)
        small = np.minimum(error, delta)
        return float((small * (error - small / 2)).mean())

    def loss_and_gradient(self, weights, x, y):
        """Return both; the gradient is that of half the square towards labels brought nearer."""
        delta = float(self.spec.params.get("delta", 1.0))
        value = self.forward(weights, x)[:, 0]
        nearer = value - np.clip(value - y, -delta, delta)
        return self.loss(weights, x, y), super().loss_and_gradient(weights, x, nearer)[1]
