"""When a placed run ends: not for who is heard first, and not never."""

from collections.abc import Callable

import pytest

from fedagent_coordinator import placement
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.policies.baselines import RandomPolicy
from tests.fakes.engine_field import Field, settings, toy_edges

DEAR, CHEAP = 50_000_000, 1_000_000
ROUND = CHEAP + 2_000_000
"""What a round costs at the cheap edge, with two agents."""


def market(name: str = "min-cost", *, edge: int | None = None, **changes: object) -> Field:
    """A dear edge, and a cheap one."""
    edges = toy_edges(2, 2)
    edges[0].rent, edges[1].rent = DEAR, CHEAP
    params = {} if edge is None else {"edge": edge}
    given = {"placed": True, "count": 500, "total_micro": 30_000_000, **changes}
    return Field(
        edges,
        settings(**given),
        Learning(RandomPolicy(), placement=placement.create(name, **params)),
        plan=lambda _: [0.05],
    )


def paid_out(field: Field) -> bool:
    total = field.settings.recipe.budget.total_micro
    assert total is not None
    return field.engine.run.spent_micro <= total < field.engine.run.spent_micro + CHEAP + 1_000_000


def away(field: Field, *, seconds: float) -> None:
    """Let the cheap edge be lost, and come back."""
    edge = field.edges[1]
    field.engine.run.edges.by_id[edge.id].live = False
    edge.mute = True
    field.kernel.after(seconds, lambda: setattr(edge, "mute", False))


def forgetful(field: Field, *, seconds: float) -> None:
    """Let the cheap edge restart, and its agents come back later."""
    edge = field.edges[1]
    agents, edge.agents = edge.agents, []
    edge.restart()
    field.kernel.after(seconds, lambda: setattr(edge, "agents", agents))


@pytest.mark.parametrize("agent_micro", [1_000_000, 40_000_000], ids=["rent", "agents"])
def test_a_dear_edge_that_comes_first_does_not_end_the_run(agent_micro: int) -> None:
    field = market(per_edge_micro=60_000_000)
    for agent in field.edges[0].agents:
        agent.price = agent_micro
    field.edges[1].mute = True
    field.kernel.after(6.0, lambda: setattr(field.edges[1], "mute", False))
    field.run(hello=False)
    assert field.done == "budget"
    assert paid_out(field)
    assert "rents" in field.reasons()


def test_a_dear_edge_alone_ends_the_run_in_a_while() -> None:
    field = market()
    field.edges[1].mute = True
    field.run(until=13.0, hello=False)
    assert field.done == "budget"
    assert not field.settled


@pytest.mark.parametrize("trouble", [away, forgetful])
def test_a_dear_edge_does_not_end_a_run_while_one_that_it_can_pay_is_away_for_a_while(
    trouble: Callable[..., None],
) -> None:
    field = market(total_micro=80 * ROUND, every_s=0.5)
    field.edges[0].rent = 100 * ROUND
    field.kernel.after(12.0, lambda: trouble(field, seconds=60.0))
    field.run()
    assert field.done == "budget"
    assert "rents" in field.reasons()
    assert paid_out(field)


def test_unrented_rounds_end_when_the_rest_pays_nobody() -> None:
    field = market("fixed", edge=5, total_micro=3_500_000)
    field.edges[1].rent = DEAR
    field.run(until=60.0)
    assert field.done == "budget"
    assert [s.feedback.rent_micro for s in field.settled.values()] == [0] * len(field.settled)
    assert field.engine.run.spent_micro == 3_000_000
