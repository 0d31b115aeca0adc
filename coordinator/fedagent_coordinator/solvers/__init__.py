"""Solvers of the assignment problem."""

from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import Parameter, Registry

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
names = registry.names


def create(solver: str, **params: object) -> Solver:
    """Build the solver that a text names, e.g. ``flgreedy:utility=sqrt-per-edge,epsilon=0.1``.

    Raises:
        UnknownNameError, ParameterError, PluginError: As `Registry.create`.
    """
    name, _, options = solver.partition(":")
    given: dict[str, object] = dict(params)
    for option in options.split(",") if options else ():
        key, equals, text = (part.strip() for part in option.partition("="))
        if not equals or not key or not text:
            raise ParameterError(name, key or option, "is no option: write key=value")
        if key in given:
            raise ParameterError(name, key, "is given twice")
        given[key] = _value(text)
    return registry.create(name, **given)


def _value(text: str) -> Parameter:
    """Read a number or a truth value; anything else is text."""
    if text in {"true", "false"}:
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


__all__ = ["AssignmentProblem", "Solution", "Solver", "assign", "create", "names", "registry"]
