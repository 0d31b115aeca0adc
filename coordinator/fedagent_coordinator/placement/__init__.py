"""Policies that choose where the global model is aggregated."""

from collections.abc import Mapping

from fedagent_coordinator.registry import Registry

from .base import Placement, PlacementPolicy, PlacementView

_PACKAGE = "fedagent_coordinator.placement"

registry: Registry[PlacementPolicy] = Registry(
    kind="placement",
    group="fedagent.placements",
    builtin={
        "budgeted-ucb": f"{_PACKAGE}.budgeted_ucb:BudgetedUcbPlacement",
        "budgeted-ucb-paper": f"{_PACKAGE}.budgeted_ucb_paper:BudgetedUcbPaperPlacement",
        "coordinator": f"{_PACKAGE}.coordinator:CoordinatorPlacement",
        "fixed": f"{_PACKAGE}.fixed:FixedPlacement",
        "min-cost": f"{_PACKAGE}.min_cost:MinCostPlacement",
        "min-trans": f"{_PACKAGE}.min_trans:MinTransPlacement",
        "random": f"{_PACKAGE}.random_choice:RandomPlacement",
    },
    members={"choose": Placement, "learn": None, "state": Mapping, "restore": None},
)
create = registry.create
names = registry.names

__all__ = ["Placement", "PlacementPolicy", "PlacementView", "create", "names", "registry"]
