"""Placed rounds: who can be rented, what a rent buys, who is passed over, and when it stops."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator import placement
from fedagent_coordinator.books.records import pack, unpack
from fedagent_coordinator.core.decision import OPEN_HORIZON, Learning, horizon, market, transfer_s
from fedagent_coordinator.core.edges import EdgeSession
from fedagent_coordinator.core.settings import Window
from fedagent_coordinator.core.trust import EdgeBackoff
from fedagent_coordinator.iterations import IterationControl
from fedagent_coordinator.iterations.fixed import FixedControl, LearnerControl
from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.policies.base import IntArray, RoundView
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_protocol import messages as m
from tests.fakes.engine_field import RUN, Field, settings, toy_edges
from tests.fakes.rounds import column_view, ended
from tests.fakes.toy_edge import ToyEdge, arrived, declined

LEARNER = LearnerControl()
MIN_COST: tuple[str, dict[str, int]] = ("min-cost", {})
RENTS = (300_000, 100_000, 200_000)


def placed(
    *rents: int,
    policy: tuple[str, dict[str, int]] = MIN_COST,
    control: IterationControl = LEARNER,
    delay_s: float = 0.001,
    **changes: Any,
) -> Field:
    """Edges of two agents each that ask these rents."""
    edges = toy_edges(len(rents), 2)
    for edge, rent in zip(edges, rents, strict=True):
        edge.rent = rent
    name, params = policy
    learning = Learning(RandomPolicy(), control, placement.create(name, **params))
    given = settings(**{"placed": True, "merge_every": 1, **changes})
    return Field(edges, given, learning, plan=lambda _: [delay_s])


def calm(control: IterationControl = LEARNER, **changes: Any) -> Field:
    return placed(*RENTS, control=control, wait_edges=3, wait_agents=6, **changes)


# ---------------------------------------------------------------------- what a rent buys


def test_each_device_is_ordered_its_own_iterations() -> None:
    class ByNumber(FixedControl):
        def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:
            return 3 + 2 * clients

    field = calm(ByNumber(), count=2, load_limit_ms=1300)
    field.run()
    assert field.orders()
    for _, order in field.orders():
        plan = field.reserved[order.round]
        wanted = (3 + 2 * plan.clients).tolist()
        assert sorted(a.iterations for a in order.assignments) == sorted(wanted)
        assert len(set(wanted)) > 1
        assert plan.controls.iterations == round(np.mean(wanted))
        back = unpack(pack(plan.controls), type(plan.controls))
        assert back.each is not None
        assert back.each.tolist() == wanted


@pytest.mark.parametrize("came", [True, False])
def test_a_failed_aggregation_is_paid_for_where_work_came(*, came: bool) -> None:
    field = calm(count=1)
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
    field = calm(count=1)
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
    field = calm(count=1)
    for edge in field.edges:
        for agent in edge.agents:
            agent.outcome = arrived(agent.id, ut_ms=300, dt_ms=200)
        edge.timing_ms = {"collect": 900.0, "aggregate": 50.0}
    if silent:
        last = field.edges[1].agents[1]
        last.outcome = m.Outcome(agent=last.id, status=m.OutcomeStatus.MISSED)
    field.run()
    assert field.settled[1].feedback.psi == pytest.approx(2 * 0.5 + 0.05)


# ------------------------------------------------- who asks least, and brings nothing

HOSTILE, HONEST = 1, 200_000


def loafing(edge: ToyEdge) -> None:
    """Have an edge order nobody, and say so: `failed`."""
    for agent in edge.agents:
        status = m.OutcomeStatus.MISSED
        agent.outcome = m.Outcome(agent=agent.id, status=status, censored=True, tau_ms=1)


def silent(edge: ToyEdge) -> None:
    """Have an edge take every order and never report."""
    edge._order = lambda order, now: []  # type: ignore[method-assign] # it says nothing


@pytest.mark.parametrize(
    ("name", "bad"), [("min-cost", loafing), ("min-cost", silent), ("budgeted-ucb", silent)]
)
def test_who_orders_nobody_and_says_failed_is_paid_nothing_and_passed_over(
    name: str, bad: Callable[[ToyEdge], None]
) -> None:
    field = placed(HOSTILE, HONEST, HONEST, policy=(name, {}), count=30, wait_edges=3)
    bad(field.edges[0])
    field.run()
    rounds = [(fields["rented"], fields["rent_micro"]) for fields in field.said("round")]
    assert len(rounds) == 30
    assert {micro for edge, micro in rounds if edge == "edge-0"} == {0}
    assert sum(edge == "edge-0" for edge, _ in rounds) <= 6
    honest = [micro for edge, micro in rounds if edge != "edge-0"]
    assert honest == [HONEST] * len(honest), "who brings updates is paid in every round"
    assert len(field.committed) == len(honest)


def test_an_edge_whose_devices_are_all_late_is_paid_and_others_get_their_turn() -> None:
    """Late work is paid, signed, and may be used in the next round: one such round is no sign."""
    field = placed(HOSTILE, HONEST, count=8, wait_edges=2)
    for agent in field.edges[0].agents:
        status = m.OutcomeStatus.LATE
        late = structs.replace(arrived(agent.id), status=status, in_time=False, used=False)
        agent.outcome = late
    field.run()
    rounds = field.said("round")
    turns = [fields["rented"] == "edge-0" for fields in rounds]
    assert turns == [True, True, False, True, False, False, True, False]
    assert {fields["rent_micro"] for fields in rounds if fields["rented"] == "edge-0"} == {HOSTILE}


def test_an_update_ends_the_pause_and_pauses_have_an_end() -> None:
    backoff, here = EdgeBackoff(), Placement(edge=1, rent_micro=5)

    def play(round_: int, *, used: bool) -> int:
        view = column_view(round_, price=[1], compute=[1.0])
        backoff.learn(here, ended(view, [0], tau_s=[1.0], x=[used]))
        away = [backoff.away(later, 3)[1] for later in range(round_ + 1, round_ + 200)]
        assert away == sorted(away, reverse=True)
        return sum(away)

    assert [play(t, used=False) for t in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 32, 32]
    assert play(10, used=True) == 0
    assert play(11, used=False) == 0


# --------------------------------------------------------------------- when a run stops

DEAR, CHEAP = 50_000_000, 1_000_000
ROUND = CHEAP + 2_000_000
"""What a round costs at the cheap edge, with two agents."""


def dear(policy: tuple[str, dict[str, int]] = MIN_COST, **changes: Any) -> Field:
    """A dear edge, and a cheap one."""
    # The last round can pay the rent and one of its two agents.
    given = {"count": 500, "total_micro": 32_500_000, "merge_every": 20, **changes}
    return placed(DEAR, CHEAP, policy=policy, delay_s=0.05, **given)


def test_a_dear_edge_alone_ends_the_run_in_a_while() -> None:
    field = dear()
    field.edges[1].mute = True
    field.run(until=13.0, hello=False)
    assert field.done == "budget"
    assert not field.settled


def test_a_dear_edge_does_not_end_a_run_while_one_that_it_can_pay_is_away_for_a_while() -> None:
    field = dear(total_micro=40 * ROUND, every_s=0.5)
    costly, cheap = field.edges
    costly.rent = 100 * ROUND

    def leave() -> None:
        field.engine.run.edges.by_id[cheap.id].live = False
        cheap.mute = True

    field.kernel.after(6.0, leave)
    field.kernel.after(66.0, lambda: setattr(cheap, "mute", False))
    field.run()
    total, spent = 40 * ROUND, field.engine.run.spent_micro
    assert field.done == "budget"
    assert "rents" in field.reasons()
    assert spent <= total < spent + CHEAP + 1_000_000


def test_unrented_rounds_end_when_the_rest_pays_nobody() -> None:
    field = dear(("fixed", {"edge": 5}), total_micro=3_500_000)
    field.edges[1].rent = DEAR
    field.run(until=60.0)
    assert field.done == "budget"
    assert [s.feedback.rent_micro for s in field.settled.values()] == [0] * len(field.settled)
    assert field.engine.run.spent_micro == 3_000_000


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


def test_the_expected_transfer_by_hand() -> None:
    nan = math.nan
    rows = [[8000.0, 0.1, 16000.0], [nan, 0.3, 8000.0], [4000.0, nan, 4000.0]]
    seconds = transfer_s(view(rows, [0, 0, 1], prices=[1, 1, 1]))
    assert seconds[0] == pytest.approx(2 * (1.0 + 0.5 + 0.1))
    assert seconds[1] == pytest.approx(4.0)
    assert math.isnan(seconds[2])


@pytest.mark.parametrize(
    ("budget", "free", "live", "asked"),
    [
        ({"per_edge_micro": 1000}, 100, [False, True, False], [550, 80, 10]),
        ({"per_edge_micro": 1000, "min_updates": 2}, 479, [False] * 3, [550, 480, 10]),
        ({"per_edge_micro": 70, "min_updates": 2}, 90, [False, True, False], [550, 80, 10]),
    ],
)
def test_who_can_be_rented(
    budget: dict[str, int], free: int, live: list[bool], asked: list[int]
) -> None:
    seen = view([[math.nan] * 3] * 3, [0, 1, 1], prices=[50, 400, 60])
    rents = enumerate((500, 20, 10))
    edges = [EdgeSession(f"edge-{e}", e, "0" * 32, 0.0, Window(""), rent=rent) for e, rent in rents]
    run = settings(**budget)
    offers, everybody = market(seen, edges, edges, free_micro=free, settings=run)
    assert offers.edge_live.tolist() == live
    assert everybody.edge_rent.tolist() == asked
    assert not everybody.fits[2], "nobody can train at the last"


def test_the_horizon_is_what_the_budget_pays() -> None:
    offers = PlacementView(
        round=4,
        edge_live=np.array([True, True, False]),
        edge_rent=np.array([10, 30, 900], dtype=np.int64),
        budget_micro=200,
    )
    assert horizon(offers, count=100, done=3) == 13.0
    assert horizon(offers, count=8, done=3) == horizon(None, count=8, done=3) == 8.0
    # Without an end it doubles.
    assert horizon(None, count=0, done=OPEN_HORIZON - 1) == OPEN_HORIZON
    for done in (OPEN_HORIZON, 3 * OPEN_HORIZON, 77 * OPEN_HORIZON):
        assert done < horizon(None, count=0, done=done) <= 2 * done
