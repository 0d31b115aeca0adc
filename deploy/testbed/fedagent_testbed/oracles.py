"""Policies with knowledge that only a testbed has: what could be had at most, and `fedcs`."""

import math
from collections.abc import Mapping

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.policies import RoundView, Selection, SelectionPolicy, StatelessPolicy
from fedagent_coordinator.policies.base import TRUTH, FloatArray
from fedagent_coordinator.policies.selection import explained, fill
from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.registry import Registry, require

registry: Registry[SelectionPolicy] = Registry(
    kind="policy",
    package="fedagent_testbed",
    builtin={
        "fedcs": "oracles:FedCsPolicy",
        "oracle": "oracles:OraclePolicy",
        "oracle-p": "oracles:OracleChancePolicy",
    },
)


def names() -> tuple[str, ...]:
    """Return the policies of the coordinator and the oracles."""
    return tuple(sorted({*policies.names(), *registry.builtin}))


def create(name: str, params: Mapping[str, object]) -> SelectionPolicy:
    """Build a policy of the coordinator, or an oracle; raise what `Registry.create` does."""
    return (registry if name in registry.builtin else policies.registry).create(name, **params)


class OraclePolicy(StatelessPolicy):
    """Solve P2 with hindsight: X as it will turn out (COCS, baseline 1)."""

    name = "oracle"
    needs = frozenset({TRUTH})

    def __init__(self, *, solver: str | Solver = "density") -> None:
        self._solver = create_solver(solver) if isinstance(solver, str) else solver

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is its value."""
        value = self._value(view)
        return explained(view, assign(view, value, self._solver, rng), value)

    def _value(self, view: RoundView) -> FloatArray:
        return view.known_truth().arrives.astype(np.float64)


class OracleChancePolicy(OraclePolicy):
    """Solve P2 with the exact probability given all that is known before the order."""

    name = "oracle-p"

    def _value(self, view: RoundView) -> FloatArray:
        return view.known_truth().chance


class FedCsPolicy(StatelessPolicy):
    """Take all clients whose expected exchange time is below the deadline (RBCS-F section 6.1)."""

    name = "fedcs"
    needs: frozenset[str] = frozenset({TRUTH})

    def __init__(self, *, deadline_s: float = 3.0) -> None:
        known = math.isfinite(deadline_s) and deadline_s > 0
        require(self.name, "deadline_s", deadline_s, known, "> 0")
        self._deadline_s = deadline_s

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round, fastest pair first; the score of a pair is minus its time."""
        tau = view.known_truth().tau_s
        order = np.lexsort((rng.random(len(tau)), tau)).astype(np.int64)
        in_time = order[tau[order] < self._deadline_s]
        return explained(view, fill(view, in_time), -tau)
