"""How a round's updates become one model: which are used, what each counts, what becomes of them.

Strategies are found by name (docs/aggregation.md): at an edge they weigh updates in a running
sum, at the coordinator they combine edge models, and may act on the merged mean.
"""

from fedagent_protocol.errors import PluginError
from fedagent_protocol.registry import Registry
from fedagent_task.travelling import CONTROL

from .base import (
    Combination,
    Contribution,
    EdgeShare,
    MergeFacts,
    RoundRule,
    Settlement,
    Strategy,
    Sums,
    Weighed,
)
from .sums import ALL_TRAIN, Arrays, Rules, RunningMean

registry: Registry[Strategy] = Registry(
    kind="aggregation strategy",
    package=__name__,
    builtin={
        "fedadagrad": "server:FedAdagrad",
        "fedadam": "server:FedAdam",
        "fedavg": "averaging:FedAvg",
        "fedavgm": "server:FedAvgM",
        "fedbn": "averaging:FedBn",
        "fednova": "averaging:FedNova",
        "fedprox": "averaging:FedProx",
        "fedyogi": "server:FedYogi",
        "qfedavg": "averaging:QFedAvg",
        "scaffold": "averaging:Scaffold",
    },
    group="fedagent.aggregators",
    members={
        "needs": None,
        "weigh": Weighed,
        "scale": float,
        "most_weight": float,
        "combine": Combination,
        "server": tuple,
    },
)
_FLAGS = ("acts", "controls", "every_round")


def create(name: str, **params: object) -> Strategy:
    """Build the named strategy; raises what `Registry.create` raises."""
    made = registry.create(name, **params)
    for flag in _FLAGS:
        if not isinstance(getattr(made, flag, None), bool):
            what = type(getattr(made, "thing", made)).__qualname__
            problem = f"has no {flag!r} that is true or false"
            raise PluginError(registry.kind, name, what, problem)
    return made


names = registry.names
parameters = registry.parameters

__all__ = [
    "ALL_TRAIN",
    "CONTROL",
    "Arrays",
    "Combination",
    "Contribution",
    "EdgeShare",
    "MergeFacts",
    "RoundRule",
    "Rules",
    "RunningMean",
    "Settlement",
    "Strategy",
    "Sums",
    "Weighed",
    "create",
    "names",
    "parameters",
    "registry",
]
