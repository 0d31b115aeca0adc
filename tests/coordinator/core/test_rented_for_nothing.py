"""An edge that asks the least rent and brings nothing: it is not paid, and others get turns."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from fedagent_coordinator import placement
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.trust import MAX_TURNS, EdgeBackoff
from fedagent_coordinator.placement.base import Placement
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_protocol import messages as m
from tests.fakes.engine_field import Field, settings, toy_edges
from tests.fakes.rounds import column_view, ended
from tests.fakes.toy_edge import ToyEdge, arrived

HOSTILE, HONEST = 1, 200_000
"""What they ask; the hostile one less than anybody."""


def loafing(edge: ToyEdge) -> ToyEdge:
    """Have an edge order nobody, and say so: `failed`."""
    edge.rent = HOSTILE
    for agent in edge.agents:
        status = m.OutcomeStatus.MISSED
        agent.outcome = m.Outcome(agent=agent.id, status=status, censored=True, tau_ms=1)
    return edge


def silent(edge: ToyEdge) -> ToyEdge:
    """Have an edge take every order and never report."""
    edge.rent = HOSTILE
    edge._order = lambda order, now: []  # type: ignore[method-assign] # it says nothing
    return edge


def field_of(edges: list[ToyEdge], name: str, count: int) -> Field:
    for edge in edges:
        edge.rent = edge.rent or HONEST
    given = {"placed": True, "merge_every": 1, "wait_edges": len(edges)}
    run = settings(**given, count=count, total_micro=10**9)
    return Field(edges, run, Learning(RandomPolicy(), placement=placement.create(name)))


def rounds_of(field: Field) -> list[tuple[object, object]]:
    """Return whom each round rented, and what it paid."""
    return [(fields["rented"], fields["rent_micro"]) for fields in field.said("round")]


@pytest.mark.parametrize("name", ["min-cost", "budgeted-ucb"])
@pytest.mark.parametrize("bad", [loafing, silent])
def test_who_orders_nobody_and_says_failed_is_paid_nothing_and_passed_over(
    name: str, bad: Callable[[ToyEdge], ToyEdge]
) -> None:
    loafer, *others = toy_edges(3, 2)
    field = field_of([bad(loafer), *others], name, 60)
    field.run(until=600)
    rounds = rounds_of(field)
    assert len(rounds) == 60
    assert sum(micro for edge, micro in rounds if edge == loafer.id) == 0  # type: ignore[misc] # numbers
    assert sum(edge == loafer.id for edge, _ in rounds) <= 7
    honest = [micro for edge, micro in rounds if edge != loafer.id]
    assert honest == [HONEST] * len(honest), "who brings updates is paid in every round"
    assert len(field.committed) == len(honest)


def test_an_edge_whose_devices_are_all_late_is_paid_and_others_get_their_turn() -> None:
    """Late work is paid, signed, and may be used in the next round: one such round is no sign."""
    late, other = toy_edges(2, 2)
    late.rent = HOSTILE
    for agent in late.agents:
        status = m.OutcomeStatus.LATE
        agent.outcome = replace(arrived(agent.id), status=status, in_time=False, used=False)
    field = field_of([late, other], "min-cost", 8)
    field.run()
    rounds = rounds_of(field)
    assert [edge == late.id for edge, _ in rounds] == [
        True,
        True,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert {micro for edge, micro in rounds if edge == late.id} == {HOSTILE}


def test_an_update_ends_the_pause_and_pauses_have_an_end() -> None:
    backoff, here = EdgeBackoff(), Placement(edge=1, rent_micro=5)

    def play(round_: int, *, used: bool) -> int:
        view = column_view(round_, price=[1], compute=[1.0])
        backoff.learn(here, ended(view, [0], tau_s=[1.0], x=[used]))
        away = [backoff.away(later, 3)[1] for later in range(round_ + 1, round_ + 200)]
        assert away == sorted(away, reverse=True)
        return sum(away)

    assert [play(t, used=False) for t in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 32, 32]
    assert MAX_TURNS == 32
    assert play(10, used=True) == 0
    assert play(11, used=False) == 0
    backoff.learn(Placement(), ended(column_view(12, price=[1], compute=[1.0]), [], tau_s=[], x=[]))
    assert not backoff.away(13, 3).any()
    np.testing.assert_array_equal(backoff.state()["empty"], [0, 1])
