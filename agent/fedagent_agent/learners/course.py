"""What strategies ask of a training beyond its update: figures, and SCAFFOLD's control variates."""

import math

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import TrainCourse
from fedagent_task.recipe.client_terms import ClientTerms
from fedagent_task.recipe.spec import LearnerSpec
from fedagent_task.travelling import CONTROL

from .base import Tensors

_PREFIX = len(CONTROL)


def local_steps(spec: LearnerSpec, mu: float, rate: float, count: int) -> float:
    """Return |a| of `count` steps (Wang et al. 2020, FedNova, section 4).

    Plain SGD weighs each gradient by 1; with momentum m the one of step k moves the model
    by (1 - m^(count - k)) / (1 - m) in all, with a proximal term by (1 - rate·mu)^(count - k).
    """
    if spec.momentum:
        m = spec.momentum
        return (count - m * (1.0 - m**count) / (1.0 - m)) / (1.0 - m)
    shrink = rate * mu
    if shrink:
        return -math.expm1(count * math.log1p(-shrink)) / shrink
    return float(count)


class Course:
    """Adds up one training's figures."""

    def __init__(self, spec: LearnerSpec, terms: ClientTerms) -> None:
        self._spec, self._terms = spec, terms
        self.begin(spec.rate)

    def begin(self, rate: float) -> None:
        """Forget the round before."""
        self._rate = rate
        self._samples, self._squares, self.steps = 0, 0.0, 0
        self.base_loss: float | None = None

    def add(self, loss: float, samples: int) -> None:
        """Take one step: the mean loss before it."""
        self.steps += 1
        self._samples += samples
        self._squares += samples * loss * loss

    @property
    def wants_base_loss(self) -> bool:
        """Whether the loss of the base model is asked for and not known yet."""
        return self._terms.base_loss and self.base_loss is None

    def told(self) -> TrainCourse:
        """Return the figures; 0 for what is not finite."""
        asked, terms = 0.0, self._terms
        if terms.local_steps:
            asked = local_steps(self._spec, terms.mu, self._rate, self.steps)
        return TrainCourse(
            base_loss=_finite(self.base_loss or 0.0),
            loss_rms=_finite(math.sqrt(self._squares / max(1, self._samples))),
            local_steps=_finite(asked),
        )


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0


class ControlVariates:
    """c of the fleet, from the model's file, and this device's own c_i, by tensor.

    SCAFFOLD, option II (Karimireddy et al. 2020).
    """

    def __init__(self) -> None:
        self._own: dict[str, npt.NDArray[np.float32]] = {}
        self._fleet: dict[str, npt.NDArray[np.float32]] = {}
        self._change: dict[str, npt.NDArray[np.float32]] = {}

    def begin(self, base: Tensors) -> Tensors:
        """Take a model's file; return c - c_i, what each gradient is corrected by."""
        self._fleet = {
            name[_PREFIX:]: tensor for name, tensor in base.items() if name.startswith(CONTROL)
        }
        self._change = {}
        return {name: c - self._of(name) for name, c in self._fleet.items()}

    def change(
        self, update: Tensors, steps: int, rate: float
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return c_i+ - c_i = (x - y) / (K·rate) - c by ``control/`` name; 0 without steps.

        `update` is y - x.
        """
        span = np.float32(1.0 / (steps * rate)) if steps else np.float32(0.0)
        self._change = {
            name: -span * update[name] - c if steps else np.zeros_like(c)
            for name, c in self._fleet.items()
        }
        return {CONTROL + name: tensor for name, tensor in self._change.items()}

    def keep(self) -> Tensors:
        """Make the last `change` this device's own; return all of c_i to be kept."""
        for name, change in self._change.items():
            self._own[name] = self._of(name) + change
        self._change = {}
        return {CONTROL + name: tensor for name, tensor in self._own.items()}

    def restore(self, kept: Tensors) -> None:
        """Take what `keep` gave; what is missing begins at 0."""
        self._own = {
            name[_PREFIX:]: np.array(tensor, np.float32)
            for name, tensor in kept.items()
            if name.startswith(CONTROL)
        }

    def _of(self, name: str) -> npt.NDArray[np.float32]:
        own = self._own.get(name)
        return own if own is not None else np.zeros_like(self._fleet[name])
