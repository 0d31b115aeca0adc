"""Clients that decline, and rounds that bring nothing: the run slows down and says why."""

import pytest

from fedagent_protocol import messages as m
from tests.fakes.engine_field import Field, settings, toy_edges
from tests.fakes.toy_edge import declined

from .test_engine import check_books

WHY = "schema: csv: there is no such file; check the path"


def declining(agents: int, who: int) -> Field:
    """Return a field whose first `who` of `agents` decline every order."""
    edges = toy_edges(agents=agents)
    for agent in edges[0].agents[:who]:
        agent.outcome = declined(agent.id, WHY)
    return Field(edges, settings(count=60))


def test_a_client_that_declines_is_asked_ever_more_seldom() -> None:
    field = declining(1, 1)
    field.run(until=60.0)
    # 0.25 + 0.5 + ... + 16 s and the pauses of the waiting: eight rounds and not sixty.
    assert 6 <= len(field.settled) <= 9


def test_a_client_that_is_mute_holds_up_few_rounds() -> None:
    edges = toy_edges(agents=3)
    mute = edges[0].agents[0]
    mute.outcome = m.Outcome(
        agent=mute.id,
        status=m.OutcomeStatus.MISSED,
        censored=True,
        tau_ms=1000,
        reason=m.UNANSWERED,
    )
    field = Field(edges, settings(count=160), plan=lambda _: [0.05])
    field.run(until=60.0)
    check_books(field)
    # Away for 2, 4, 8, 16 and 30 of some 50 seconds.
    missed = [s for s in field.settled.values() if m.UNANSWERED in s.details.reason]
    assert len(missed) == 5
    assert len(field.settled) == 160


def test_a_valid_update_ends_the_leave_for_good() -> None:
    field = declining(1, 1)
    agent = field.edges[0].agents[0]
    field.kernel.after(7.0, lambda: setattr(agent, "outcome", None))
    field.kernel.after(30.0, lambda: setattr(agent, "outcome", declined(agent.id, WHY)))
    field.settings, field.plan = settings(count=2000), lambda _: [0.05]
    field.__post_init__()
    field.run(until=34.0)
    # 0.25 + 0.5 + 1 + 2 + 4 s, and from 30 s on 0.25 + 0.5 + 1 s again.
    assert sum(settled.declined for settled in field.settled.values()) in (8, 9, 10)


@pytest.mark.parametrize("status", [m.OutcomeStatus.REJECTED, m.OutcomeStatus.GONE])
def test_rounds_that_bring_nothing_valid_slow_down_whatever_the_reason(
    status: m.OutcomeStatus,
) -> None:
    edges = toy_edges(agents=1)
    edges[0].agents[0].outcome = m.Outcome(agent="agent-0-0", status=status, tau_ms=1)
    field = Field(edges, settings(count=60))
    field.run(until=30.0)
    # 0.25 + 0.5 + 1 + 2 + 4 + 5 + 5 + ...
    assert 8 <= len(field.settled) <= 11
