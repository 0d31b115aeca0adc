"""What the trainer asks of a learner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.messages import TrainCourse
from fedagent_task.models import Inputs, Labels, Model
from fedagent_task.models.graph import Graph

Tensors = Mapping[str, npt.NDArray[np.float32]]


class FailedTrainingError(FedagentError):
    """A training or evaluation without a result; becomes `Failed`, whose reasons it has."""

    template = "{reason}: {detail}"

    reason: str
    detail: str = ""


def failed_code(where: str) -> FailedTrainingError:
    """Return the error of a package's training code: what and where, and nothing more."""
    return FailedTrainingError("error", f"the task's own training code raised {where}")


def enough(model: Model, count: int) -> bool:
    """Return whether there is something to learn from.

    Raises:
        FailedTrainingError: There is one sample, and the model needs two.
    """
    if count == 1 and isinstance(model, Graph) and (what := model.program.pairs):
        raise FailedTrainingError("no_data", f"{what} needs two samples")
    return count > 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What some iterations did: samples counted each time, the mean loss before each's own step."""

    iterations: int
    samples: int
    loss: float


class Learner(Protocol):
    """Learns from samples as they arrive; deterministic by its seed.

    One round is `begin`, `absorb`, some `step`s, `update`. Samples stay over rounds
    as far as the learner keeps them. What is derived from this class keeps nothing else of a
    task, unless it says so.
    """

    @property
    def default_iterations(self) -> int:
        """Iterations of a round whose order leaves the number to the learner."""

    @property
    def num_samples(self) -> int:
        """Different samples that the next update rests on: its weight."""

    @property
    def dropped(self) -> int:
        """New samples that were never learnt from because memory is bounded."""

    def begin(self, base: Tensors, number: int = 1) -> None:
        """Start from a new global model, float32 tensors by name, in the round of this number."""

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Take new samples: scaled float32 [n, features], or sparse, and labels [n]."""

    def step(self, iterations: int) -> StepResult:
        """Do this many local iterations; short enough to be cancelled between calls.

        `FailedTrainingError` of the reason ``no_data``: more samples are needed.
        """

    def update(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 difference to the model that `begin` gave."""

    @property
    def course(self) -> TrainCourse:
        """Figures of the training since `begin`, for strategies and policies."""
        return TrainCourse()

    @property
    def local(self) -> Tensors:
        """Tensors of the model that stay on the device, as they are now."""
        return {}

    def keep(self) -> Tensors:
        """Settle the last `update`; return what the device is to keep over rounds and restarts."""
        return self.local

    def restore(self, kept: Tensors) -> None:
        """Take what `keep` gave; without anything begin anew."""
        del kept
