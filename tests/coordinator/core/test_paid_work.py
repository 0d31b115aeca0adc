"""Late work is paid once, whatever edges report, and however often the coordinator restarts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.core.paid_work import PaidWork
from fedagent_protocol.messages import EdgeToCoordinator, Outcome, OutcomeStatus, RoundReport
from fedagent_task.recipe.spec import PrivacySpec
from tests.fakes.engine_field import Field, settings, toy_edges
from tests.fakes.toy_edge import ToyEdge

EPOCH = "1" * 32
AGENTS = st.sampled_from(["a", "b", "c"])
CLAIMS = st.lists(st.tuples(AGENTS, st.integers(0, 12), st.booleans()), max_size=3)


def outcome(agent: str, made_in: int, *, valid: bool = True) -> Outcome:
    return Outcome(agent=agent, status=OutcomeStatus.ARRIVED, valid=valid, made_in=made_in)


@given(
    rounds=st.lists(CLAIMS, min_size=1, max_size=12),
    late_rounds=st.integers(0, 5),
    restarts=st.sets(st.integers(1, 12)),
)
def test_no_work_is_paid_twice(
    rounds: list[list[tuple[str, int, bool]]], late_rounds: int, restarts: set[int]
) -> None:
    book: list[tuple[int, tuple[str, int]]] = []
    paid = PaidWork(late_rounds)
    for number, said in enumerate(rounds, start=1):
        if number in restarts:
            paid = PaidWork(late_rounds, {w for at, w in book if at >= number - late_rounds})
        taken: dict[str, Outcome] = {}
        for agent, made_in, valid in said:
            one = outcome(agent, made_in, valid=valid)
            if not paid.refuses(one, number):
                taken.setdefault(agent, one)  # one reservation of an agent a round
        report = RoundReport(run=EPOCH, round=number, epoch=EPOCH, outcomes=tuple(taken.values()))
        paid.settled(number, [report])
        book += [(number, (a, one.made_in or number)) for a, one in taken.items() if one.valid]
        assert len(paid.known) <= 3 * max(1, late_rounds)
    works = [work for _, work in book]
    assert len(works) == len(set(works))
    assert all(0 <= at - begun <= late_rounds for at, (_, begun) in book)


def test_work_of_the_round_itself_is_always_taken() -> None:
    paid = PaidWork(5, {("a", 4)})
    assert not paid.refuses(outcome("a", 0), 6)
    assert paid.refuses(outcome("a", 4), 6)
    assert not paid.refuses(outcome("a", 5), 6)
    assert paid.refuses(outcome("a", 6), 6), "it is no earlier round"
    assert paid.refuses(outcome("a", 7), 6)
    assert PaidWork(0).refuses(outcome("a", 5), 6)


@pytest.mark.parametrize("mode", ["local", "off"])
def test_an_order_says_how_many_updates_of_a_device_have_cost_privacy(mode: str) -> None:
    of_run = settings(count=4)
    privacy = PrivacySpec(mode=mode, releases=4)  # type: ignore[arg-type]  # one of its words
    recipe = structs.replace(of_run.recipe, privacy=privacy)
    field = Field(toy_edges(1, 2), replace(of_run, recipe=recipe))
    field.engine.run.paid_work.updates["agent-0-1"] = 7  # as the books had it at the start
    field.run()
    orders = {order.round: order for _, order in field.orders()}
    told = {n: {a.agent: a.releases for a in one.assignments} for n, one in orders.items()}
    assert told == {
        n: {"agent-0-0": n - 1, "agent-0-1": n + 6}
        if mode == "local"
        else dict.fromkeys(told[n], 0)
        for n in range(1, 5)
    }


def test_what_a_device_says_of_its_samples_is_a_warning_once() -> None:
    field = Field(toy_edges(1, 2), settings(count=3))
    up = field.up

    def noted(edge: ToyEdge, message: EdgeToCoordinator) -> None:
        if isinstance(message, RoundReport):
            first, *rest = message.outcomes
            outcomes = (structs.replace(first, reason="50 % do not fit"), *rest)
            message = structs.replace(message, outcomes=outcomes)
        up(edge, message)

    field.up = noted  # type: ignore[method-assign]  # of this test
    field.run()
    assert sorted(one.text for one in field.warned) == [
        f"device agent-0-{i}: 50 % do not fit" for i in range(2)
    ]


def test_a_report_that_repeats_and_invents_uses_up_nobodys_epsilon() -> None:
    of_run = settings(count=3)
    privacy = PrivacySpec(mode="local", releases=4)
    recipe = structs.replace(of_run.recipe, privacy=privacy)
    field = Field(toy_edges(2, 1), replace(of_run, recipe=recipe))
    up = field.up

    def inflated(edge: ToyEdge, message: EdgeToCoordinator) -> None:
        if edge.id == "edge-0" and isinstance(message, RoundReport):
            more = [outcome("agent-1-0", 0)] * 50 + [outcome(f"invented-{i}", 0) for i in range(99)]
            message = structs.replace(message, outcomes=(*message.outcomes, *more))
        up(edge, message)

    field.up = inflated  # type: ignore[method-assign]  # of this test
    field.run()
    assert field.engine.run.paid_work.updates == {"agent-0-0": 3, "agent-1-0": 3}
