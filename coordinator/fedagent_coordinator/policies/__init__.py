"""Selection policies, one algorithm per file, found by name."""

from collections.abc import Mapping

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
        "adaptive": f"{_PACKAGE}.adaptive:AdaptivePolicy",
        "all": f"{_PACKAGE}.all_available:AllPolicy",
        "bp-ucb": f"{_PACKAGE}.bp_ucb:BpUcbPolicy",
        "cheapest": f"{_PACKAGE}.cheapest:CheapestPolicy",
        "cocs": f"{_PACKAGE}.cocs:CocsPolicy",
        "cocs-paper": f"{_PACKAGE}.cocs_paper:CocsPaperPolicy",
        "cucb": f"{_PACKAGE}.cucb:CucbPolicy",
        "fair": f"{_PACKAGE}.fair:FairPolicy",
        "fastest": f"{_PACKAGE}.fastest:FastestPolicy",
        "fedcs": f"{_PACKAGE}.fedcs:FedCsPolicy",
        "fixed": f"{_PACKAGE}.fixed:FixedPolicy",
        "linucb": f"{_PACKAGE}.linucb:LinUcbPolicy",
        "oracle": f"{_PACKAGE}.oracle:OraclePolicy",
        "oracle-p": f"{_PACKAGE}.oracle:OracleChancePolicy",
        "quick-init-ucb": f"{_PACKAGE}.quick_init:QuickInitUcbPolicy",
        "quick-init-ucb-paper": f"{_PACKAGE}.quick_init:QuickInitUcbPaperPolicy",
        "random": f"{_PACKAGE}.random_choice:RandomPolicy",
        "rbcs-f": f"{_PACKAGE}.rbcs_f:RbcsFPolicy",
        "round-robin": f"{_PACKAGE}.round_robin:RoundRobinPolicy",
        "ucb": f"{_PACKAGE}.ucb:UcbPolicy",
        "volunteers": f"{_PACKAGE}.volunteers:VolunteersPolicy",
    },
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
