"""Calls for opinions, and what around the judge they concern: neighbours, owner, record."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedagent_protocol.messages import OpinionCall
from fedagent_task.spec import OpinionsSpec

from .download import Download
from .effects import Answer, Effect, Key

_SLACK = 1e-9


class Peering(Protocol):
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
        most_epsilon: Of one opinion.
        total_epsilon: Of all opinions in one run.
    """

    most_epsilon: float | None = None
    total_epsilon: float | None = None

    def objection(self, spec: OpinionsSpec, spent: float) -> str:
        """Say why an opinion is not given; empty if it is."""
        most, total = self.most_epsilon, self.total_epsilon
        if most is None and total is None:
            return ""
        if spec.epsilon <= 0:
            return "the owner gives opinions only with noise: set opinions.epsilon"
        if most is not None and spec.epsilon > most:
            return f"the owner grants epsilon {most:g} an opinion, not {spec.epsilon:g}"
        if total is not None and spent + spec.epsilon > total * (1 + _SLACK):
            return f"the owner's epsilon of {total:g} for this run is used up"
        return ""


NO_LIMITS = PrivacyLimits()


@dataclass(frozen=True, slots=True)
class Said:
    """What survived the last process: answers that cost privacy, and what runs have spent."""

    answers: Iterable[Answer] = ()
    spent: Mapping[str, float] = field(default_factory=dict)


NOTHING_SAID = Said()


@dataclass(slots=True)
class Call:
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
    """

    key: Key
    message: OpinionCall
    askers: dict[str, OpinionCall]
    until: float
    download: Download | None = None
    here: bool = False
    job: int | None = None
    answer: Answer | None = None
