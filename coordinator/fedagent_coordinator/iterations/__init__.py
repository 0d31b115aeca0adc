"""How many local iterations a round has (BAS, P1 and eq. 10-11; ALGORITHMS section 7).

A control is asked before each round and learns from each that was settled. `fixed` and
`learner` (also named `strsaga-default`) learn nothing; `primal-dual` weighs seconds of
training against the load limit of each device and against the quality of the model;
`by-progress` gives every device a number of its own, by what its training changes.
docs/iterations.md explains its units and parameters.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fedagent_coordinator.policies.base import Feedback, IntArray, State
from fedagent_protocol.registry import Registry


class IterationControl(Protocol):
    """Decides how many local iterations a round has. All chance comes from `rng`."""

    load_limit_s: float
    """Seconds of training computation that a round may cost a device; 0 for no limit."""

    def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:
        """Return each client's number for the next round, int64[S]; 0 leaves it to the learner."""

    def learn(self, feedback: Feedback, *, horizon: float, steps: int = 1) -> None:
        """Take in a settled round of |M_t| arrival `steps`; the run may have `horizon`."""

    def notes(self) -> Mapping[str, float]:
        """Return what it goes by, named, for the books."""

    def state(self) -> State:
        """Return a copy of everything learnt."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly."""


registry: Registry[IterationControl] = Registry(
    kind="iteration control",
    package=__name__,
    builtin={
        "by-progress": "by_progress:ByProgressControl",
        "fixed": "fixed:FixedControl",
        "learner": "fixed:LearnerControl",
        "primal-dual": "primal_dual:PrimalDualControl",
        "strsaga-default": "fixed:LearnerControl",
    },
    group="fedagent.iterations",
    members={
        "choose": np.ndarray,
        "learn": None,
        "notes": Mapping,
        "state": Mapping,
        "restore": None,
    },
)
names = registry.names


def create(
    name: str, params: Mapping[str, object] | None = None, *, default: int = 0
) -> IterationControl:
    """Build a control by name; `default` is ``rounds.iterations`` and counts for `learner` only.

    Raises:
        UnknownNameError: There is no such control.
        ParameterError: A parameter is unknown or out of range.
    """
    given = dict(params or {})
    if name == "learner" and default:
        given.setdefault("iterations", default)
    return registry.create(name, **given)
