"""Solvers of the assignment problem."""

from fedagent_coordinator.registry import Registry

from .base import Assignment, Solution, Solver

registry: Registry[Solver] = Registry(
    kind="solver",
    group="fedagent.solvers",
    builtin={
        "density": "fedagent_coordinator.solvers.density:DensitySolver",
        "exact": "fedagent_coordinator.solvers.exact:ExactSolver",
        "flgreedy": "fedagent_coordinator.solvers.flgreedy:FlgreedySolver",
    },
    members={"solve": Solution},
)
create = registry.create
names = registry.names

__all__ = ["Assignment", "Solution", "Solver", "create", "names", "registry"]
