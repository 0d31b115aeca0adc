"""Control variates of SCAFFOLD on a device (Karimireddy et al. 2020, option II)."""

import numpy as np
import numpy.typing as npt

from fedagent_task.client_terms import CONTROL

from .base import Tensors

_PREFIX = len(CONTROL)


class ControlVariates:
    """c of the fleet, from the model's file, and this device's own c_i, by tensor."""

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
