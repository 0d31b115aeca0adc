"""Selection policies, found by name."""

from collections.abc import Mapping

from fedagent_protocol.registry import Registry

from .base import (
    Bound,
    Ending,
    Feedback,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    Truth,
    round_rng,
)
from .selection import check_selection, check_view, explained, fill
from .state import ArrayState, StatelessPolicy

registry: Registry[SelectionPolicy] = Registry(
    kind="policy",
    package=__name__,
    builtin={
        "adaptive": "adaptive.policy:AdaptivePolicy",
        "all": "baselines:AllPolicy",
        "bp-ucb": "sets.bp_ucb:BpUcbPolicy",
        "cheapest": "baselines:CheapestPolicy",
        "cocs": "cocs:CocsPolicy",
        "cucb": "baselines:CucbPolicy",
        "fair": "fair:FairPolicy",
        "fastest": "fastest:FastestPolicy",
        "fixed": "baselines:FixedPolicy",
        "linucb": "linucb:LinUcbPolicy",
        "oort": "oort:OortPolicy",
        "quick-init-ucb": "sets.quick_init:QuickInitUcbPolicy",
        "random": "baselines:RandomPolicy",
        "rbcs-f": "rbcs_f:RbcsFPolicy",
        "round-robin": "baselines:RoundRobinPolicy",
        "ucb": "sets.quick_init:UcbPolicy",
        "volunteers": "baselines:VolunteersPolicy",
    },
    group="fedagent.policies",
    members={
        "needs": None,
        "select": Selection,
        "learn": None,
        "state": Mapping,
        "restore": None,
    },
)
create = registry.create
names = registry.names
parameters = registry.parameters

__all__ = [
    "ArrayState",
    "Bound",
    "Ending",
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
