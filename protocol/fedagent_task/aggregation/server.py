"""Strategies with an optimiser at the coordinator, whose gradient is the last model less the mean.

FedAvgM: Hsu et al., 2019. The others: Reddi et al., ICLR 2021, algorithm 2: v begins with tau^2,
and the moments' bias is not corrected. Moments are float32, and tensors of the state by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedagent_protocol.registry import number, require

from .averaging import FedAvg
from .base import MergeFacts, Tensors
from .sums import Arrays

Floats = npt.NDArray[np.float64]


class _Optimiser(FedAvg, ABC):
    acts: ClassVar[bool] = True

    def server(
        self, base: Arrays, mean: Arrays, state: Arrays, facts: MergeFacts
    ) -> tuple[Tensors, Tensors]:
        """Return the model after one step; buffers take the mean."""
        model: dict[str, npt.NDArray[np.generic]] = dict(mean)
        kept: dict[str, npt.NDArray[np.generic]] = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, start, delta in _moves(base, mean, facts):
                former = {
                    key: state[f"{key}/{name}"].astype(np.float64)
                    for key in self.moments
                    if f"{key}/{name}" in state
                }
                step, moments = self.step(delta, former)
                model[name] = (start + step).astype(base[name].dtype)
                kept |= {f"{key}/{name}": one.astype(np.float32) for key, one in moments.items()}
        return model, kept

    moments: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def step(self, delta: Floats, former: dict[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        """Return what is added to a tensor, and its moments."""


class FedAvgM(_Optimiser):
    """Momentum `beta` and step `eta` at the coordinator."""

    moments: ClassVar[tuple[str, ...]] = ("m",)

    def __init__(self, *, eta: float = 1.0, beta: float = 0.9) -> None:
        self.eta = number("fedavgm", "eta", eta, most=1e3)
        self.beta = _decay("fedavgm", "beta", beta)

    def step(self, delta: Floats, former: dict[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        """Return the step along the momentum."""
        momentum = delta + self.beta * former["m"] if "m" in former else delta
        return self.eta * momentum, {"m": momentum}


class _Adaptive(_Optimiser):
    """From v = tau^2, as in the paper; Flower's begin with 0."""

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]] = ("m", "v")

    def __init__(self, *, eta: float, beta1: float, beta2: float, tau: float) -> None:
        self.eta = number(self.name, "eta", eta, most=1e3)
        self.beta1 = _decay(self.name, "beta1", beta1)
        self.beta2 = _decay(self.name, "beta2", beta2)
        self.tau = number(self.name, "tau", tau, most=1e3)

    def step(self, delta: Floats, former: dict[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        """Return the step along the first moment, by the root of the second."""
        first = (1.0 - self.beta1) * delta
        if "m" in former:
            first += self.beta1 * former["m"]
        second = self.second(former.get("v", np.full_like(delta, self.tau**2)), delta * delta)
        return self.eta * first / (np.sqrt(second) + self.tau), {"m": first, "v": second}

    @abstractmethod
    def second(self, former: Floats, square: Floats) -> Floats:
        """Return the second moment."""


class FedAdagrad(_Adaptive):
    """``v + delta^2``; without momentum, as in the paper."""

    name = "fedadagrad"

    def __init__(self, *, eta: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(eta=eta, beta1=beta1, beta2=0.0, tau=tau)

    def second(self, former: Floats, square: Floats) -> Floats:
        """Return the sum of squares."""
        return former + square


class FedAdam(_Adaptive):
    """``beta2 v + (1 - beta2) delta^2``; no bias is corrected, as Flower's does from v = 0."""

    name = "fedadam"

    def __init__(
        self, *, eta: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(eta=eta, beta1=beta1, beta2=beta2, tau=tau)

    def second(self, former: Floats, square: Floats) -> Floats:
        """Return the running mean of squares."""
        return self.beta2 * former + (1.0 - self.beta2) * square


class FedYogi(_Adaptive):
    """``v - (1 - beta2) delta^2 sign(v - delta^2)``."""

    name = "fedyogi"

    def __init__(
        self, *, eta: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(eta=eta, beta1=beta1, beta2=beta2, tau=tau)

    def second(self, former: Floats, square: Floats) -> Floats:
        """Return Yogi's, which changes by no more than the square."""
        return former - (1.0 - self.beta2) * square * np.sign(former - square)


def _moves(base: Arrays, mean: Arrays, facts: MergeFacts) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield each trained tensor's name, last value, and move."""
    for name, array in mean.items():
        if facts.rules.trains(name):
            start = base[name].astype(np.float64)
            yield name, start, array.astype(np.float64) - start


def _decay(name: str, parameter: str, value: float) -> float:
    number(name, parameter, value, least=0.0, most=1.0)
    require(name, parameter, value, value < 1, "less than 1")
    return float(value)
