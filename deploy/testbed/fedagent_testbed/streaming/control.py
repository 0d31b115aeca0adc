"""Who decides in a streaming study: ``ITERATIONS+PLACEMENT``.

``primal-dual+budgeted-ucb`` is ours. Iterations are those of the coordinator
(`primal-dual`, `strsaga-default`, `learner`), or ``fixed-N``; placements too (`random`,
`min-cost`, ...), or ``fixed-N`` for edge N, ``fixed-best`` for the edge that is best in
hindsight, and ``alone``: nobody aggregates, every device keeps its model.
"""

import re
from dataclasses import dataclass

from fedagent_coordinator import placement
from fedagent_coordinator.core import iterations
from fedagent_coordinator.core.iterations import IterationControl
from fedagent_coordinator.placement import PlacementPolicy
from fedagent_task.errors import RecipeError
from fedagent_testbed.study.spec import TestbedRecipe

ALONE = "alone"
BEST = "fixed-best"
OURS = "primal-dual+budgeted-ucb"
BASELINES = tuple(
    f"fixed-{rho}+{place}"
    for rho in (1, 5, 20)
    for place in ("min-trans", "min-cost", "random", BEST)
)
ALL = (OURS, *BASELINES)
"""What ``all`` stands for: ours, and the baselines of the paper's Fig. 10."""

_FIXED = re.compile(r"fixed-([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Variant:
    """A pair of names.

    Attributes:
        iterations, placement: Without parameters.
    """

    iterations: str
    placement: str

    @classmethod
    def parse(cls, name: str) -> "Variant":
        """Take a name apart.

        Raises:
            RecipeError: It is no pair of names, or one of them is none of these.
        """
        first, plus, second = name.partition("+")
        known = {*iterations.names(), *placement.names(), ALONE, BEST} - {"fixed", "coordinator"}
        if not plus:
            raise RecipeError("policy", f"{name[:64]!r} is no ITERATIONS+PLACEMENT", f"e.g. {OURS}")
        for part, names in (
            (first, iterations.names()),
            (second, (*placement.names(), ALONE, BEST)),
        ):
            if part in {"fixed", "coordinator"} or not (part in names or _FIXED.fullmatch(part)):
                hint = f"take fixed-N, or of {', '.join(sorted(known & set(names)))}"
                raise RecipeError("policy", f"has {part[:32]!r} in {name[:64]!r}", hint)
        return cls(first, second)

    @property
    def alone(self) -> bool:
        """Whether nobody aggregates."""
        return self.placement == ALONE


def make_iterations(recipe: TestbedRecipe, name: str) -> IterationControl:
    """Return an iteration control with the recipe's parameters for it.

    Raises:
        PolicyError: A parameter is wrong.
    """
    if match := _FIXED.fullmatch(name):
        return iterations.create("fixed", {"iterations": int(match[1])})
    limit = {"load_limit_s": recipe.streaming.load_limit_s}
    return iterations.create(name, {**limit, **recipe.policies.get(name, {})})


def make_placement(recipe: TestbedRecipe, name: str, best: int) -> PlacementPolicy:
    """Return a placement with the recipe's parameters for it.

    Args:
        recipe: The study.
        name: The placement.
        best: The edge that ``fixed-best`` stands for.

    Raises:
        PolicyError: A parameter is wrong.
    """
    if name == BEST:
        return placement.create("fixed", edge=best)
    if match := _FIXED.fullmatch(name):
        edge = int(match[1])
        if edge >= recipe.edges:
            raise RecipeError("policy", f"names edge {edge}", f"there are {recipe.edges}, from 0")
        return placement.create("fixed", edge=edge)
    return placement.create(name, **recipe.policies.get(name, {}))
