"""Selection policies, one algorithm per file, found by name."""

from fedagent_coordinator.registry import Registry

from .base import (
    Bound,
    Feedback,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    StatelessPolicy,
    Truth,
    round_rng,
)
from .selection import check_selection, check_view, explained, fill

_PACKAGE = "fedagent_coordinator.policies"

registry: Registry[SelectionPolicy] = Registry(
    kind="policy",
    group="fedagent.policies",
    builtin={
        "cheapest": f"{_PACKAGE}.cheapest:CheapestPolicy",
        "cocs-paper": f"{_PACKAGE}.cocs_paper:CocsPaperPolicy",
        "random": f"{_PACKAGE}.random_choice:RandomPolicy",
    },
)
create = registry.create
names = registry.names
parameters = registry.parameters

__all__ = [
    "Bound",
    "Feedback",
    "Purpose",
    "RoundView",
    "Selection",
    "SelectionPolicy",
    "StatelessPolicy",
    "Truth",
    "check_selection",
    "check_view",
    "create",
    "explained",
    "fill",
    "names",
    "parameters",
    "registry",
    "round_rng",
]
