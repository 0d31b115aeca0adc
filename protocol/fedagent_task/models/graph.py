"""A model that travels as a graph: its tensors. What it computes, torch computes (ADR 26)."""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from fedagent_protocol.extras import how_to_add
from fedagent_protocol.tensors import Manifest
from fedagent_task.errors import NotInstalledError, TaskFormatError
from fedagent_task.program.codec import columns, decode_program
from fedagent_task.program.spec import TRAVELS, Constant, Program, Role

from .base import Doubles, Floats, Inputs, Labels, Shaped, Weights, manifest_of


@dataclass(frozen=True)
class Graph(Shaped):
    """A program's tensors, float32 all of them; see `Model`.

    Raises:
        TaskFormatError: The program is not well formed, or its rows are not of `features` columns.
    """

    def __post_init__(self) -> None:
        if (width := columns(self.program)) != self.spec.features:
            raise TaskFormatError(
                "model.features", f"is {self.spec.features}, the program's {width}"
            )

    @property
    def program(self) -> Program:
        """What it computes."""
        return decode_program(self.spec.program)

    def once_manifest(self) -> Manifest:
        """Return what a device gets once: frozen tensors, and the first values of local ones."""
        return manifest_of(
            (one.name, one.shape) for one in self.program.of_roles("local", "frozen")
        )

    def whole_manifest(self) -> Manifest:
        """Return what an exported file holds: all that the author's modules keep."""
        return manifest_of((name, one.shape) for name, one in self.program.named())

    def rules(self) -> dict[str, Role]:
        """Return the role of each tensor of a model file by name."""
        return {tensor.name: tensor.role for tensor in self.program.of_roles(*TRAVELS)}

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:  # noqa: ARG002 - the interface's
        """Raise `TaskFormatError`: a graph begins from the tensors that its task names."""
        raise TaskFormatError("model.first", "names what a graph begins from")

    def forward(self, weights: Weights, x: Inputs) -> Doubles:  # noqa: ARG002 - the interface's
        """Raise `NotInstalledError`."""
        _needs_torch("the output")

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:  # noqa: ARG002 - the same
        """Raise `NotInstalledError`."""
        _needs_torch("the loss")

    def loss_and_gradient(
        self,
        weights: Weights,  # noqa: ARG002 - the same
        x: Inputs,  # noqa: ARG002 - the same
        y: Labels,  # noqa: ARG002 - the same
    ) -> tuple[float, dict[str, Floats]]:
        """Raise `NotInstalledError`."""
        _needs_torch("the gradient")


def array_of(one: Constant) -> npt.NDArray[np.generic]:
    """Return the numbers of a constant."""
    little = np.dtype(one.dtype).newbyteorder("<")
    return np.frombuffer(one.data, little).astype(one.dtype).reshape(one.shape)


def _needs_torch(what: str) -> NoReturn:
    raise NotInstalledError(
        f"{what} of a model of kind graph is computed by torch",
        f"install torch there: {how_to_add('torch')}",
    )
