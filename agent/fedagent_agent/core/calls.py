"""Calls for opinions, and what around the evaluator they concern: neighbours, owner, record."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedagent_protocol.messages import OpinionCall, OpinionMode
from fedagent_task.spec import TaskSpec

from .download import Download
from .effects import Effect, Key, OpinionAnswer

_SLACK = 1e-9


class PeerExchange(Protocol):
    """What neighbours do with an opinion (mode ``peers``)."""

    def begin(
        self, call: OpinionCall, edge: str, opinion: float | None, now: float
    ) -> list[Effect]:
        """Begin a slot with the own opinion; None: the device has none.

        Said once for each edge that calls for this round.
        """
        ...


@dataclass(frozen=True, slots=True)
class PrivacyLimits:
    """What the owner of a device grants; None for no limit.

    Attributes:
        max_epsilon: Of one opinion.
        total_epsilon: Of all opinions in one run.
        lifetime_epsilon: Of all opinions ever; runs are named by whoever calls.
        declared_only: Opinions go to neighbours that the owner declares, and to nobody else.
    """

    max_epsilon: float | None = None
    total_epsilon: float | None = None
    lifetime_epsilon: float | None = None
    declared_only: bool = False

    def objection(self, task: TaskSpec, mode: OpinionMode, *, spent: float, ever: float) -> str:
        """Say why an opinion is not given; empty if it is.

        Args:
            task: As the edge gave it.
            mode: Of the call.
            spent: Epsilon of its run so far.
            ever: Epsilon of all runs so far.
        """
        apart = mode is OpinionMode.PEERS and task.peers.graph == "declared"
        if self.declared_only and not apart:
            return "the owner tells opinions to declared neighbours only"
        spec = task.opinions
        most, total, lifetime = self.max_epsilon, self.total_epsilon, self.lifetime_epsilon
        if most is None and total is None and lifetime is None:
            return ""
        if spec.epsilon <= 0:
            return "the owner gives opinions only with noise: set opinions.epsilon"
        if most is not None and spec.epsilon > most:
            return f"the owner grants epsilon {most:g} an opinion, not {spec.epsilon:g}"
        if total is not None and spent + spec.epsilon > total * (1 + _SLACK):
            return f"the owner's epsilon of {total:g} for this run is used up"
        if lifetime is not None and ever + spec.epsilon > lifetime * (1 + _SLACK):
            return f"the owner's epsilon of {lifetime:g} for all runs is used up"
        return ""


NO_LIMITS = PrivacyLimits()


@dataclass(frozen=True, slots=True)
class OpinionRecord:
    """What survived the last process: answers that cost privacy, and what was spent.

    Attributes:
        spent: By run.
        ever: In all runs, also those that are forgotten.
    """

    answers: Iterable[OpinionAnswer] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    ever: float = 0.0


NO_OPINIONS = OpinionRecord()


@dataclass(slots=True)
class PendingEvaluation:
    """One call that is being followed.

    Attributes:
        key: Edge that task and model come from, run and round.
        message: What that edge said first.
        askers: All edges that want the answer.
        until: When nobody waits any more.
        download: The model on its way in.
        here: The model is whole.
        job: Number of the scoring, once it is wanted of the trainer.
        answer: What will be said, once it is known.
        patient_until: When mode ``moments`` is content with few samples.
        look_at: When it looks at the stream again.
    """

    key: Key
    message: OpinionCall
    askers: dict[str, OpinionCall]
    until: float
    download: Download | None = None
    here: bool = False
    job: int | None = None
    answer: OpinionAnswer | None = None
    patient_until: float = 0.0
    look_at: float = 0.0
