"""How updates are weighed at an edge: by the strategy that the run's task names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec
import numpy as np

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.messages import Weighting
from fedagent_task import aggregation
from fedagent_task.aggregation import ALL_TRAIN, Contribution, Rules, Strategy, Sums, Weighed
from fedagent_task.aggregation.alignment import LEFT_OUT, doubts, gram_of, judged
from fedagent_task.aggregation.alignment import remembered as alignments_after
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.bounds import Told, remembered, settled, told_of
from fedagent_task.aggregation.robust import Robust, rule_of
from fedagent_task.aggregation.sums import rules_of
from fedagent_task.errors import NotInstalledError
from fedagent_task.privacy.accountant import deviation_of
from fedagent_task.recipe.spec import (
    AggregationSpec,
    LearnerSpec,
    LimitsSpec,
    ModelSpec,
    PeersSpec,
    PrivacySpec,
    SecureAggregationSpec,
)
from fedagent_task.secure_aggregation.ring import Ring, most_weight, ring_of

from .admission import Verdict

UNWEIGHED = Weighed(0.0, 0.0)


class Task(msgspec.Struct):
    """What an edge reads of a task; it carries the rest as bytes."""

    model: ModelSpec | None = None
    learner: LearnerSpec = LearnerSpec()
    limits: LimitsSpec = LimitsSpec()
    aggregation: AggregationSpec = AggregationSpec()
    peers: PeersSpec = PeersSpec()
    privacy: PrivacySpec = PrivacySpec()
    secure_aggregation: SecureAggregationSpec = SecureAggregationSpec()
    weighting: Weighting = Weighting.SAMPLES

    @property
    def hides_updates(self) -> bool:
        """Whether an edge must not, or cannot, weigh an update by others."""
        return self.privacy.mode == "central" or self.secure_aggregation.wanted


_tasks = msgspec.msgpack.Decoder(Task)
UNREAD = Task()


@lru_cache(maxsize=2)
def task_of(body: bytes) -> Task:
    """Read a task; one that cannot be read says nothing, and its agents will refuse it."""
    try:
        return _tasks.decode(body)
    except (msgspec.DecodeError, ValueError):
        return UNREAD


@dataclass(frozen=True, slots=True)
class Weighing:
    """A task's strategy; with a `refusal` there is none here, and no round of the task."""

    strategy: Strategy = field(default_factory=FedAvg)
    rules: Rules = ALL_TRAIN
    learner: LearnerSpec = field(default_factory=LearnerSpec)
    control_limit: float = 0.0  # largest L2 norm of the control variates in an update; 0 for none
    deviation: float = 0.0  # of the noise on each number of a sum; 0 for none
    secure: SecureAggregationSpec = field(default_factory=SecureAggregationSpec)
    ring: Ring | None = None  # that of masked updates; None where they come as they are
    refusal: str = ""
    robust: Robust = field(default_factory=Robust)
    late_rounds: int = 0  # for so many rounds agents may go on with what they have begun

    def weigh(self, told: Contribution) -> Weighed:
        """Return an update's place in the sum; one that cannot be weighed is not used."""
        try:
            found = self.strategy.weigh(told)
        except FedagentError as error:
            return replace(UNWEIGHED, reason=str(error)[:200])
        numbers = (found.coefficient, found.weight, found.local_steps)
        if not all(math.isfinite(number) for number in numbers) or found.weight < 0:
            return replace(UNWEIGHED, reason="the strategy returned no number")
        if told.discount == 1.0:
            return found
        coefficient, weight = found.coefficient * told.discount, found.weight * told.discount
        return replace(found, coefficient=coefficient, weight=weight)

    def scale(self, sums: Sums) -> float:
        """Return the factor on the sum's mean; of no use where the strategy fails."""
        try:
            return float(self.strategy.scale(sums))
        except FedagentError:
            return math.nan


PLAIN = Weighing()


@lru_cache(maxsize=2)
def weighing_of(body: bytes) -> Weighing:
    """Return how the task in these bytes has updates weighed; FedAvg where it does not say."""
    task = task_of(body)
    if task is UNREAD:
        return PLAIN
    named, learner, secure = task.aggregation, task.learner, task.secure_aggregation
    try:
        strategy = aggregation.create(named.name, **named.params)
        robust = rule_of(named, hidden=task.hides_updates)
        rules = ALL_TRAIN if task.model is None else rules_of(task.model)
    except FedagentError as error:
        return Weighing(refusal=f"the edge has no such aggregation: {error}"[:200])
    deviation = 0.0
    if task.privacy.mode == "central":
        try:
            deviation = deviation_of(task.privacy)
        except NotInstalledError as error:
            return Weighing(refusal=f"at the edge, {error}"[:200])
    return Weighing(
        strategy,
        rules,
        learner,
        # c_i is a mean of gradients, of which a step within the norm's limit has limit / rate.
        control_limit=2.0 * task.limits.norm / learner.rate,
        deviation=deviation,
        secure=secure,
        ring=ring_of(secure, most_weight(task.weighting, task.limits)) if secure.wanted else None,
        robust=robust,
        late_rounds=0 if task.hides_updates else named.late_rounds,
    )


@dataclass(frozen=True, slots=True)
class Usual:
    """What an edge remembers of its run: the newest updates, and how its devices were aligned."""

    told: tuple[Told, ...] = ()
    alignments: Mapping[str, float] = field(default_factory=dict)

    def settle(
        self, weighing: Weighing, round_: Mapping[str, tuple[Contribution, Verdict]]
    ) -> tuple[dict[str, tuple[Weighed, str]], "Usual"]:
        """Return how updates weigh once all are known, and why one is left out; what is usual now.

        They are in the order in which they came.
        """
        rule = weighing.robust
        asked = [(told, verdict.control_norm) for told, verdict in round_.values()]
        found = settled(rule, weighing.weigh, asked, self.told)
        why, alignments = {}, self.alignments
        sketches = {name: v.sketch for name, (_, v) in round_.items() if v.sketch is not None}
        if rule.directions and sketches:
            gram = gram_of(list(sketches.values()))
            before = np.array([alignments.get(name, np.nan) for name in sketches])
            now, against = judged(gram, before)
            alignments = alignments_after(alignments, list(sketches), now)
            numbers = int(np.max([np.count_nonzero(one) for one in sketches.values()]))
            odd = doubts(gram, now, against, numbers)
            why = dict(zip(sketches, odd, strict=True))
        places = {}
        for name, weighed in zip(round_, found, strict=True):
            reason = why.get(name, "")
            places[name] = (UNWEIGHED if reason in LEFT_OUT else weighed), reason
        kept = remembered(self.told, [told_of(*one) for one in asked])
        return places, Usual(kept, alignments)
