"""What a set of pairs is worth: monotone submodular utilities (ALGORITHMS section 2).

All of them are functions of the sum of values at each edge, so a solver carries
those sums, float64[M], and asks for gains from there. The paper's factors 1/M of
eq. (8) and (19) are left out: they change no maximiser.

`sqrt-total` has the maximiser of `linear`, for hindsight X and for plug-in chances.
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_protocol.errors import UnknownNameError

from .base import AssignmentProblem


class Utility(ABC):
    """Worth of a set of pairs."""

    @abstractmethod
    def of_sums(self, sums: FloatArray) -> float:
        """Return the utility of sets with these sums of values per edge, float64[M]."""

    @abstractmethod
    def gains(
        self, sums: FloatArray, edge: npt.NDArray[np.integer], value: FloatArray
    ) -> FloatArray:
        """Return float64[R], the rise by each of R pairs alone, on top of `sums`."""

    def value(self, problem: AssignmentProblem, pairs: IntArray) -> float:
        """Return the utility of these rows, int64[S]."""
        return self.of_sums(sums_per_edge(problem, pairs))

    def marginals(self, problem: AssignmentProblem, pairs: IntArray, rows: IntArray) -> FloatArray:
        """Return float64[R], the rise when each of `rows` alone joins `pairs`."""
        return self.gains(sums_per_edge(problem, pairs), problem.edge[rows], problem.value[rows])


class LinearUtility(Utility):
    """`linear`: the sum of all values, eq. (8)."""

    def of_sums(self, sums: FloatArray) -> float:
        """Return the sum."""
        return float(sums.sum())

    def gains(
        self,
        sums: FloatArray,  # noqa: ARG002  # what is there does not matter
        edge: npt.NDArray[np.integer],  # noqa: ARG002
        value: FloatArray,
    ) -> FloatArray:
        """Return the values themselves."""
        return value


class SqrtTotalUtility(Utility):
    """`sqrt-total`: the root of the sum of all values, eq. (19)."""

    def of_sums(self, sums: FloatArray) -> float:
        """Return the root of the sum."""
        return float(np.sqrt(sums.sum()))

    def gains(
        self,
        sums: FloatArray,
        edge: npt.NDArray[np.integer],  # noqa: ARG002  # every edge counts alike
        value: FloatArray,
    ) -> FloatArray:
        """Return how much the root rises."""
        return _root_rise(np.full(len(value), sums.sum()), value)


class SqrtPerEdgeUtility(Utility):
    """`sqrt-per-edge`: the sum over edges of the root of the sum there (ours)."""

    def of_sums(self, sums: FloatArray) -> float:
        """Return the sum of the roots."""
        return float(np.sqrt(sums).sum())

    def gains(
        self, sums: FloatArray, edge: npt.NDArray[np.integer], value: FloatArray
    ) -> FloatArray:
        """Return how much the root of each pair's own edge rises."""
        return _root_rise(sums[edge], value)


UTILITIES: dict[str, Utility] = {
    "linear": LinearUtility(),
    "sqrt-total": SqrtTotalUtility(),
    "sqrt-per-edge": SqrtPerEdgeUtility(),
}


def named_utility(name: str) -> Utility:
    """Return the utility of this name.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in UTILITIES:
        raise UnknownNameError("utility", name, sorted(UTILITIES))
    return UTILITIES[name]


def sums_per_edge(problem: AssignmentProblem, pairs: IntArray) -> FloatArray:
    """Return the sum of the values of these rows at each edge, float64[M]."""
    sums = np.zeros(len(problem.budget))
    np.add.at(sums, problem.edge[pairs], problem.value[pairs])
    return sums


def _root_rise(base: FloatArray, value: FloatArray) -> FloatArray:
    """Return sqrt(base + value) - sqrt(base) without cancellation; 0 where value is 0."""
    total = np.sqrt(base + value) + np.sqrt(base)
    rise: FloatArray = np.divide(value, total, out=np.zeros(len(value)), where=total > 0)
    return rise
