"""How updates are weighed at an edge: by the strategy that the run's task names."""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.messages import Assignment, TrainStats, Weighting
from fedagent_task import aggregation
from fedagent_task.aggregation import ALL_TRAIN, Contribution, Rules, Strategy, Sums, Weighed
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.robust import Robust, rule_of
from fedagent_task.aggregation.task import most_steps, rules_of
from fedagent_task.privacy.accountant import AccountantMissingError, deviation_of
from fedagent_task.recipe.spec import (
    AggregationSpec,
    LearnerSpec,
    LimitsSpec,
    ModelSpec,
    PrivacySpec,
    SecureAggregationSpec,
)
from fedagent_task.secure_aggregation.ring import Ring, most_weight, ring_of


class _Task(msgspec.Struct):
    model: ModelSpec | None = None
    learner: LearnerSpec = LearnerSpec()
    limits: LimitsSpec = LimitsSpec()
    aggregation: AggregationSpec = AggregationSpec()
    privacy: PrivacySpec = PrivacySpec()
    secure_aggregation: SecureAggregationSpec = SecureAggregationSpec()
    weighting: Weighting = Weighting.SAMPLES

    @property
    def hides_updates(self) -> bool:
        """Whether an edge must not, or cannot, weigh an update by others."""
        return self.privacy.mode == "central" or self.secure_aggregation.wanted


_tasks = msgspec.msgpack.Decoder(_Task)


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

    def told(
        self,
        stats: TrainStats,
        assignment: Assignment,
        *,
        norm: float,
        uniform: bool,
        age: int = 0,
    ) -> Contribution:
        """Return what a device tells of its update, which it began `age` rounds before."""
        return Contribution(
            num_samples=float(stats.num_samples),
            norm=norm,
            base_loss=stats.course.base_loss,
            local_steps=stats.course.local_steps,
            uniform=uniform,
            rate=self.learner.rate,
            most_steps=most_steps(self.learner, assignment.iterations),
            discount=(1.0 + age) ** -0.5,
        )

    def weigh(self, told: Contribution) -> Weighed:
        """Return an update's place in the sum; one that cannot be weighed is not used."""
        try:
            found = self.strategy.weigh(told)
        except FedagentError as error:
            return Weighed(0.0, 0.0, reason=str(error)[:200])
        numbers = (found.coefficient, found.weight, found.local_steps)
        if not all(math.isfinite(number) for number in numbers) or found.weight < 0:
            return Weighed(0.0, 0.0, reason="the strategy returned no number")
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
    try:
        task = _tasks.decode(body)
    except (msgspec.DecodeError, ValueError):
        return PLAIN
    named, learner, limit = task.aggregation, task.learner, task.limits.norm
    try:
        strategy = aggregation.create(named.name, **named.params)
        robust = rule_of(named, hidden=task.hides_updates)
        roles = ALL_TRAIN if task.model is None else rules_of(task.model)
    except FedagentError as error:
        return Weighing(refusal=f"the edge has no such aggregation: {error}"[:200])
    deviation = 0.0
    if task.privacy.mode == "central":
        try:
            deviation = deviation_of(task.privacy)
        except AccountantMissingError as error:
            return Weighing(refusal=f"at the edge, {error}"[:200])
    # c_i is a mean of gradients, of which a step within the norm's limit has at most limit / rate.
    control_limit = 2.0 * limit / learner.rate
    secure = task.secure_aggregation
    ring = ring_of(secure, most_weight(task.weighting, task.limits)) if secure.wanted else None
    return Weighing(
        strategy,
        roles,
        learner,
        control_limit,
        deviation,
        secure,
        ring,
        robust=robust,
        late_rounds=0 if task.hides_updates else named.late_rounds,
    )
