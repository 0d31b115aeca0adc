"""Policies that choose where the global model is aggregated."""

from collections.abc import Mapping

from fedagent_protocol.registry import Registry

from .base import Placement, PlacementPolicy, PlacementView

registry: Registry[PlacementPolicy] = Registry(
    kind="placement",
    package=__name__,
    builtin={
        "budgeted-ucb": "budgeted_ucb:BudgetedUcbPlacement",
        "budgeted-ucb-paper": "budgeted_ucb:BudgetedUcbPaperPlacement",
        "coordinator": "base:CoordinatorPlacement",
        "fixed": "base:FixedPlacement",
        "min-cost": "base:MinCostPlacement",
        "min-trans": "base:MinTransPlacement",
        "random": "base:RandomPlacement",
    },
    group="fedagent.placements",
    members={"choose": Placement, "learn": None, "state": Mapping, "restore": None},
)
create = registry.create
names = registry.names

__all__ = ["Placement", "PlacementPolicy", "PlacementView", "create", "names", "registry"]
