"""Policies that choose where the global model is aggregated."""

from fedagent_coordinator.registry import Registry

from .base import Placement, PlacementPolicy, PlacementView

registry: Registry[PlacementPolicy] = Registry(
    kind="placement",
    group="fedagent.placements",
    builtin={"coordinator": "fedagent_coordinator.placement.coordinator:CoordinatorPlacement"},
)
create = registry.create
names = registry.names

__all__ = ["Placement", "PlacementPolicy", "PlacementView", "create", "names", "registry"]
