"""Solvers of the assignment problem."""

from fedagent_protocol.registry import Registry

from .base import AssignmentProblem, Solution, Solver, assign

registry: Registry[Solver] = Registry(
    kind="solver",
    package=__name__,
    builtin={
        "density": "density:DensitySolver",
        "exact": "exact:ExactSolver",
        "flgreedy": "flgreedy:FlgreedySolver",
    },
    group="fedagent.solvers",
    members={"solve": Solution},
)
create = registry.create
names = registry.names

__all__ = ["AssignmentProblem", "Solution", "Solver", "assign", "create", "names", "registry"]
