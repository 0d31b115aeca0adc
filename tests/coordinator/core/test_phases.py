"""When rounds begin: on a schedule, without an end, and not before everybody is there."""

import numpy as np

from fedagent_coordinator.policies.base import RoundView, Selection
from fedagent_coordinator.policies.baselines import RandomPolicy
from tests.fakes.engine_field import Field, settings, toy_edges

from .test_engine import check_books


class Watched(RandomPolicy):
    """Notes when each round begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []
        self.field: Field | None = None

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        assert self.field is not None
        self.begun.append(self.field.kernel.now)
        return super().select(view, rng)


def watched(field: Field) -> list[float]:
    """Return the times at which the rounds of a field begin, to be filled while it runs."""
    assert isinstance(field.policy, Watched)
    field.policy.field = field
    return field.policy.begun


def test_a_round_begins_no_earlier_than_the_schedule_says() -> None:
    field = Field(toy_edges(), settings(count=5, every_s=10.0), Watched())
    begun, start = watched(field), field.kernel.now
    field.run()
    check_books(field)
    assert begun[0] - start < 1.0
    gaps = np.diff(begun)
    # The harness looks at its clock every 50 ms.
    assert (gaps >= 10.0 - 1e-6).all()
    assert (gaps < 10.2).all()
    # The last round is not waited after.
    assert field.end == "rounds"


def test_a_run_without_an_end_goes_on_until_its_budget_is_spent() -> None:
    field = Field(toy_edges(), settings(count=0, every_s=1.0, merge_every=2))
    field.run(until=40.0)
    assert field.end == ""
    assert 30 < len(field.settled) <= 41
    poor = Field(toy_edges(), settings(count=0, total_micro=30_000_000, merge_every=2))
    poor.run()
    assert poor.end == "budget"
    assert len(poor.settled) == 10
