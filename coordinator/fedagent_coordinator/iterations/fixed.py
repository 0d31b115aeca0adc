"""`learner` and `fixed`: one number of local iterations for the whole run."""

from collections.abc import Mapping

import numpy as np

from fedagent_coordinator.policies.base import Feedback, IntArray
from fedagent_coordinator.policies.state import ArrayState
from fedagent_protocol.registry import number, whole

from .primal_dual import MAX_ITERATIONS


class LearnerControl(ArrayState):
    """`learner`: the learner's own number (0), or one that the recipe's rounds name."""

    name = "learner"
    _least = 0

    def __init__(self, *, iterations: int = 0, load_limit_s: float = 0.0) -> None:
        self._iterations = whole(self.name, "iterations", iterations, self._least, MAX_ITERATIONS)
        self.load_limit_s = number(self.name, "load_limit_s", load_limit_s, least=0.0)

    def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - the interface's arguments
        """Return the same number every round."""
        return np.full(len(clients), self._iterations, dtype=np.int64)

    def learn(self, feedback: Feedback, *, horizon: float, steps: int = 1) -> None:
        """Learn nothing."""

    def notes(self) -> Mapping[str, float]:
        """Return nothing."""
        return {}


class FixedControl(LearnerControl):
    """`fixed`: one number of iterations for the whole run (BAS, baseline)."""

    name = "fixed"
    _least = 1

    def __init__(self, *, iterations: int = 5, load_limit_s: float = 0.0) -> None:
        super().__init__(iterations=iterations, load_limit_s=load_limit_s)
