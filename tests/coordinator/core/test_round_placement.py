"""Placed rounds: who can be rented, when it stops, what a rent buys, what is measured."""

import math

import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator import placement
from fedagent_coordinator.books.records import pack, unpack
from fedagent_coordinator.core.decision import (
    OPEN_HORIZON,
    Learning,
    horizon,
    market,
    transfer_s,
)
from fedagent_coordinator.core.edges import EdgeSession
from fedagent_coordinator.iterations import IterationControl
from fedagent_coordinator.iterations.fixed import FixedControl, LearnerControl
from fedagent_coordinator.placement.base import PlacementView
from fedagent_coordinator.policies.base import IntArray, RoundView
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_protocol import messages as m
from tests.fakes.engine_field import RUN, Field, settings, toy_edges
from tests.fakes.toy_edge import arrived, declined

LEARNER = LearnerControl()
RENTS = (300_000, 100_000, 200_000)


def placed(control: IterationControl = LEARNER, **changes: object) -> Field:
    edges = toy_edges(3, 2)
    for edge, rent in zip(edges, RENTS, strict=True):
        edge.rent = rent
    given = {"placed": True, "merge_every": 1, "wait_edges": 3, "wait_agents": 6, **changes}
    learning = Learning(RandomPolicy(), control, placement.create("min-cost"))
    return Field(edges, settings(**given), learning)


# ----------------------------------------------------------------------- in the engine


def test_each_device_is_ordered_its_own_iterations() -> None:
    class ByNumber(FixedControl):
        def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:
            return 3 + 2 * clients

    field = placed(ByNumber(), count=2, load_limit_ms=1300)
    field.run()
    assert field.orders()
    for _, order in field.orders():
        plan = field.reserved[order.round]
        clients = plan.view.pair_client[plan.selection.pairs]
        wanted = (3 + 2 * clients).tolist()
        assert sorted(a.iterations for a in order.assignments) == sorted(wanted)
        assert len(set(wanted)) > 1
        assert plan.controls.iterations == round(np.mean(wanted))
        back = unpack(pack(plan.controls), type(plan.controls))
        assert back.each is not None
        assert back.each.tolist() == wanted


@pytest.mark.parametrize("came", [True, False])
def test_a_failed_aggregation_is_paid_for_where_work_came(*, came: bool) -> None:
    field = placed(count=1)
    for edge in field.edges:
        edge.agents[0].outcome = declined(edge.agents[0].id)
        last = edge.agents[1].id
        unused = structs.replace(arrived(last), used=False)  # too few came for an average
        edge.agents[1].outcome = unused if came else declined(last)
    field.run()
    assert field.settled[1].edges[0].failed
    assert field.settled[1].feedback.rent_micro == (RENTS[1] if came else 0)
    assert field.settled[1].feedback.psi is None


def test_it_waits_until_the_edges_have_said_their_rent() -> None:
    field = placed(count=1)
    began = field.kernel.now

    def plan(kind: str) -> list[float]:
        unsaid = kind in {"edge-hello", "edge-status"} and field.kernel.now < began + 3
        return [] if unsaid else [0.001]

    field.plan = plan
    for edge in field.edges:
        # As after a restart of the coordinator: an answer comes before any hello.
        edge.run = RUN
        field.up(edge, edge.columns(m.RoundOpen(run=RUN, round=1)))
    field.run(until=60)
    assert "rents" in field.reasons()
    assert field.done == "rounds"
    assert field.settled[1].feedback.rent_micro == RENTS[1]


@pytest.mark.parametrize("silent", [False, True])
def test_psi_is_what_moved_the_models_and_made_the_average(*, silent: bool) -> None:
    """An agent that shows no times counts as the mean of the others."""
    field = placed(count=1)
    for edge in field.edges:
        for agent in edge.agents:
            agent.outcome = arrived(agent.id, ut_ms=300, dt_ms=200)
        edge.timing_ms = {"collect": 900.0, "aggregate": 50.0}
    if silent:
        last = field.edges[1].agents[1]
        last.outcome = m.Outcome(agent=last.id, status=m.OutcomeStatus.MISSED)
    field.run()
    assert field.settled[1].feedback.psi == pytest.approx(2 * 0.5 + 0.05)


# ------------------------------------------------------------------------ the pieces


def view(features: list[list[float]], edges: list[int], *, prices: list[int]) -> RoundView:
    n = len(edges)
    return RoundView(
        round=1,
        pair_client=np.arange(n, dtype=np.int32),
        pair_edge=np.array(edges, dtype=np.int32),
        pair_features=np.array(features, dtype=np.float32).reshape(n, 3),
        feature_names=("download_bps", "rtt_s", "upload_bps"),
        client_price=np.array(prices, dtype=np.int64),
        client_available=np.ones(n, dtype=np.bool_),
        edge_budget=np.full(3, 1000, dtype=np.int64),
        model_bytes=1000,
    )


def session(index: int, rent: int | None) -> EdgeSession:
    return EdgeSession(f"edge-{index}", index, "0" * 32, 0.0, "", rent=rent)


def test_the_expected_transfer_by_hand() -> None:
    nan = math.nan
    rows = [[8000.0, 0.1, 16000.0], [nan, 0.3, 8000.0], [4000.0, nan, 4000.0]]
    seconds = transfer_s(view(rows, [0, 0, 1], prices=[1, 1, 1]))
    assert seconds[0] == pytest.approx(2 * (1.0 + 0.5 + 0.1))
    assert seconds[1] == pytest.approx(4.0)
    assert math.isnan(seconds[2])


def test_who_can_be_rented() -> None:
    seen = view([[math.nan] * 3] * 3, [0, 1, 1], prices=[50, 400, 60])
    edges = [session(0, 500), session(1, 20), session(2, 10)]
    run = settings(per_edge_micro=1000)
    offers, everybody = market(seen, edges, edges, free_micro=100, settings=run)
    assert offers.edge_live.tolist() == [False, True, False]
    assert everybody.edge_rent.tolist() == [550, 80, 10]
    assert everybody.fits.tolist() == [False, True, False], "nobody can train at the last"
    both = settings(per_edge_micro=1000, min_updates=2)
    offers, everybody = market(seen, edges, edges, free_micro=479, settings=both)
    assert offers.edge_live.tolist() == [False, False, False]
    assert everybody.edge_rent.tolist() == [550, 480, 10]
    capped = settings(per_edge_micro=70, min_updates=2)
    _, everybody = market(seen, edges, edges, free_micro=90, settings=capped)
    assert everybody.edge_rent[1] == 80


def test_the_horizon_is_what_the_budget_pays() -> None:
    offers = PlacementView(
        round=4,
        edge_live=np.array([True, True, False]),
        edge_rent=np.array([10, 30, 900], dtype=np.int64),
        budget_micro=200,
    )
    assert horizon(offers, count=100, done=3) == 13.0
    assert horizon(offers, count=8, done=3) == 8.0
    assert horizon(None, count=8, done=3) == 8.0
    # Without an end it doubles.
    assert horizon(None, count=0, done=OPEN_HORIZON - 1) == OPEN_HORIZON
    for done in (OPEN_HORIZON, 3 * OPEN_HORIZON, 77 * OPEN_HORIZON):
        assert done < horizon(None, count=0, done=done) <= 2 * done
