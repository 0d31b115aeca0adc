"""Strategies whose rule is linear in the updates: edges and coordinator come to the flat result."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedagent_protocol.registry import number
from fedagent_task.travelling import CONTROL

from .base import (
    Combination,
    Contribution,
    EdgeShare,
    MergeFacts,
    Sums,
    Tensors,
    Weighed,
)
from .sums import Arrays

TINY_LOSS = 1e-10
"""What a power of a loss is taken of is never less (as in the authors' own code)."""


class FedAvg:
    """The mean of the updates by samples, or of all alike (McMahan et al., AISTATS 2017)."""

    needs: ClassVar[frozenset[str]] = frozenset()
    acts: ClassVar[bool] = False
    controls: ClassVar[bool] = False
    every_round: ClassVar[bool] = False

    def weigh(self, update: Contribution) -> Weighed:
        """Return its samples, or 1."""
        return Weighed(update.share, update.share)

    def scale(self, sums: Sums) -> float:  # noqa: ARG002 - the interface's argument
        """Return 1: the mean as it is."""
        return 1.0

    def most_weight(self, *, max_samples: int, norm_limit: float, rate: float) -> float:  # noqa: ARG002
        """Return the most samples of an update."""
        return float(max_samples)

    def combine(self, edges: Sequence[EdgeShare]) -> Combination:
        """Return the weight of the updates in each edge's model since the last merge.

        If updates count alike, so do all edges that hold a model of the run, also those that
        learnt nothing (ALGORITHMS section 1).
        """
        return Combination(
            tuple(
                float(one.holds or one.weight > 0) if one.uniform else one.weight for one in edges
            )
        )

    def server(
        self,
        base: Arrays,  # noqa: ARG002 - the interface's argument
        mean: Arrays,
        state: Arrays,
        facts: MergeFacts,  # noqa: ARG002 - the interface's argument
    ) -> tuple[Tensors, Tensors]:
        """Return the mean."""
        return mean, state


class FedProx(FedAvg):
    """FedAvg of devices that are held to the global model by `mu` (Li et al., MLSys 2020)."""

    def __init__(self, *, mu: float = 0.01) -> None:
        self.mu = number("fedprox", "mu", mu, least=0.0, most=1e6)


class FedBn(FedAvg):
    """FedAvg of models whose norm layers stay on the device (Li et al., ICLR 2021)."""


class FedNova(FedAvg):
    """Normalised averaging: each update by its own steps (Wang et al., NeurIPS 2020, eq. 10).

    With `mu` devices add FedProx's term, and count their steps by it.

    ``x + tau * sum(p_i delta_i / tau_i)`` with ``tau = sum(p_i tau_i)``. The coordinator takes
    edges for clients, which comes to the flat rule where it merges every round.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"local_steps"})
    acts: ClassVar[bool] = True

    def __init__(self, *, mu: float = 0.0) -> None:
        self.mu = number("fednova", "mu", mu, least=0.0, most=1e6)

    def weigh(self, update: Contribution) -> Weighed:
        """Return samples over steps; without steps it is not used."""
        if not update.local_steps > 0:
            return Weighed(0.0, 0.0, reason="no local_steps")
        steps = min(max(update.local_steps, 1.0), max(update.most_steps, 1.0))
        return Weighed(update.share / steps, update.share, steps)

    def scale(self, sums: Sums) -> float:
        """Return the mean of the steps."""
        return sums.local_steps

    def combine(self, edges: Sequence[EdgeShare]) -> Combination:
        """Return weights by steps, and the factor that makes up for them."""
        steps = [max(one.local_steps, 1.0) for one in edges]
        weights = tuple(one.weight / tau for one, tau in zip(edges, steps, strict=True))
        total = sum(one.weight for one in edges)
        if not total:
            return Combination(weights)
        mean = sum(one.weight * tau for one, tau in zip(edges, steps, strict=True)) / total
        factor = mean * sum(weights) / total
        return Combination(weights, factor, tuple(one.weight for one in edges))

    def server(
        self, base: Arrays, mean: Arrays, state: Arrays, facts: MergeFacts
    ) -> tuple[Tensors, Tensors]:
        """Return the base moved by the factor."""
        moved = {
            name: _towards(base[name], array, facts.factor if facts.rules.trains(name) else 1.0)
            for name, array in mean.items()
        }
        return moved, state


class _ByWeight(FedAvg):
    """Edges count by the weight of their updates, whatever the recipe's weighting."""

    def combine(self, edges: Sequence[EdgeShare]) -> Combination:
        """Return each edge's sum of weights."""
        return Combination(tuple(one.weight for one in edges))


class QFedAvg(_ByWeight):
    """Fairer averaging: by powers of the losses (Li et al., ICLR 2020, algorithm 2).

    ``x + sum(F_i^q delta_i) / sum(h_i)``, where ``h_i = q F_i^(q-1) L |delta_i|^2 + F_i^q``, with
    L = 1 / rate.
    The weight of an update is h_i, so that the mean of edges by weight is the flat rule.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"base_loss"})

    def __init__(self, *, q: float = 1.0, loss_cap: float = 100.0) -> None:
        self.q = number("qfedavg", "q", q, least=0.0, most=10.0)
        self.loss_cap = number("qfedavg", "loss_cap", loss_cap, most=1e6)

    def weigh(self, update: Contribution) -> Weighed:
        """Return the powers of its loss; without a loss it is not used, unless q is 0."""
        if not update.base_loss > 0 and self.q:
            return Weighed(0.0, 0.0, reason="no base_loss")
        loss = min(update.base_loss, self.loss_cap)
        power, hessian = self._powers(loss, update.norm, update.rate)
        return Weighed(update.share * power, update.share * (hessian + power))

    def most_weight(self, *, max_samples: int, norm_limit: float, rate: float) -> float:
        """Return the weight of the largest norm at the least and at the largest loss."""
        limit = norm_limit or 1e30
        ends = [self._powers(loss, limit, rate) for loss in (TINY_LOSS, self.loss_cap)]
        return float(max_samples * sum(max(part) for part in zip(*ends, strict=True)))

    def _powers(self, loss: float, norm: float, rate: float) -> tuple[float, float]:
        loss = max(loss, TINY_LOSS)
        hessian = self.q * loss ** (self.q - 1.0) * norm * norm / rate
        return float(loss**self.q), float(hessian)


class Scaffold(_ByWeight):
    """Control variates against drift (Karimireddy et al., ICML 2020, algorithm 1, option II).

    ``x + eta_g * mean(delta_i)``, ``c + |S| / N * mean(delta c_i)``; all updates count alike.
    """

    acts: ClassVar[bool] = True
    controls: ClassVar[bool] = True
    every_round: ClassVar[bool] = True

    def __init__(self, *, eta_g: float = 1.0) -> None:
        self.eta_g = number("scaffold", "eta_g", eta_g, most=100.0)

    def weigh(self, update: Contribution) -> Weighed:  # noqa: ARG002 - all alike
        """Return 1."""
        return Weighed(1.0, 1.0)

    def most_weight(self, *, max_samples: int, norm_limit: float, rate: float) -> float:  # noqa: ARG002
        """Return 1."""
        return 1.0

    def server(
        self, base: Arrays, mean: Arrays, state: Arrays, facts: MergeFacts
    ) -> tuple[Tensors, Tensors]:
        """Return the model by eta_g, and the control variates by the share that took part."""
        took_part = min(1.0, facts.weight / max(facts.clients, 1))

        def factor(name: str) -> float:
            if name.startswith(CONTROL):
                return took_part
            return self.eta_g if facts.rules.trains(name) else 1.0

        moved = {name: _towards(base[name], array, factor(name)) for name, array in mean.items()}
        return moved, state


def _towards(
    base: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    mean: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    factor: float,
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    if factor == 1.0:
        return mean
    with np.errstate(over="ignore", invalid="ignore"):
        start = base.astype(np.float64)
        start += factor * (mean.astype(np.float64) - start)
        return start.astype(base.dtype)
