"""What opinions may cost a device's owner."""

from typing import Annotated

from msgspec import Meta, Struct

from fedagent_protocol.messages import OpinionMode
from fedagent_protocol.option import Option
from fedagent_task.recipe.spec import TaskSpec

_SLACK = 1e-9


class PrivacySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the owner on evaluations; with any epsilon, opinions without noise are not sent."""

    max_epsilon: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | None,
        Option(
            "Maximum epsilon per opinion. When set, opinions without noise are never sent.",
            metavar="EPSILON",
            default="any",
        ),
    ] = None
    total_epsilon: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Option(
            "Total epsilon budget per run. When set, opinions without noise are never sent.",
            metavar="EPSILON",
            default="any",
        ),
    ] = None
    lifetime_epsilon: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Option(
            "Total epsilon budget of this device. When set, opinions without noise are not sent.",
            metavar="EPSILON",
            default="any",
        ),
    ] = None
    """Over all runs, which whoever calls can name at will."""
    declared_only: Annotated[
        bool, Option("Send opinions only to neighbours given with --peer, and to no edge.")
    ] = False

    def objection(self, task: TaskSpec, mode: OpinionMode, *, spent: float, ever: float) -> str:
        """Return why an opinion is withheld; `spent` is epsilon of its run, `ever` of all."""
        declared = mode is OpinionMode.PEERS and task.peers.graph == "declared"
        if self.declared_only and not declared:
            return "the owner sends opinions to declared neighbours only"
        epsilon = task.opinions.epsilon
        if task.privacy.wanted and epsilon <= 0 and mode is not OpinionMode.PEERS:
            return "the task's updates are private but its opinions are not: set opinions.epsilon"
        most, total, lifetime = self.max_epsilon, self.total_epsilon, self.lifetime_epsilon
        if most is None and total is None and lifetime is None:
            return ""
        if epsilon <= 0:
            return "the owner gives opinions only with noise: set opinions.epsilon"
        if most is not None and epsilon > most:
            return f"the owner grants epsilon {most:g} an opinion, not {epsilon:g}"
        if total is not None and spent + epsilon > total * (1 + _SLACK):
            return f"the owner's epsilon of {total:g} for this run is used up"
        if lifetime is not None and ever + epsilon > lifetime * (1 + _SLACK):
            return f"the owner's epsilon of {lifetime:g} for all runs is used up"
        return ""


NO_LIMITS = PrivacySettings()
