"""Rents in the books: reserved with the round, ended with it, once, within the budget."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.core.effects import Controls, Reserve, Settle
from fedagent_coordinator.database.learning import settled
from fedagent_coordinator.errors import (
    BudgetExceededError,
    DuplicateRoundError,
    InvalidAmountError,
    RefusedEntryError,
)
from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.reader import open_reader
from fedagent_coordinator.store import Store

from .money import Crash, CrashAt, begun, small_plan, small_result, small_view
from .test_audit_rounds import problems


def plan(round_: int, rent: int = 250, *, prices: tuple[int, ...] = (100, 200)) -> Reserve:
    """Rent edge 1, of two, for its agents."""
    view = small_view(round_, prices, budgets=(1000, 1000), edges=[1] * len(prices))
    market = PlacementView(
        round=round_,
        edge_live=np.array([True, True]),
        edge_rent=np.array([900, rent], dtype=np.int64),
        budget_micro=5000,
    )
    controls = Controls(
        iterations=6,
        horizon=9.0,
        notes={"rho": 5.7},
        view=market,
        placement=Placement(edge=1, rent_micro=rent),
    )
    return replace(small_plan(view), controls=controls)


def result(given_: Reserve, paid: set[int], *, rent: int) -> Settle:
    settle = small_result(given_, paid)
    return replace(settle, feedback=replace(settle.feedback, rent_micro=rent))


def test_a_rent_is_reserved_settled_and_read_back(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store).run_id
        one, two = plan(1), plan(2)
        store.reserve(run, one, policy="random")
        assert store.read.balance(run).reserved_micro == 550
        store.settle(run, result(one, {0}, rent=250))
        store.reserve(run, two, policy="random")
        store.settle(run, result(two, {0, 1}, rent=0))
        rows = store.read.rounds(run)
        assert [(r.iterations, r.rented, r.rent_micro) for r in rows] == [
            (6, "edge-1", 250),
            (6, "edge-1", 0),
        ]
        assert rows[0].notes == {"rho": 5.7}
        assert rows[0].paid_micro == 100
        assert store.read.rents(run) == {"edge-1": 250}
        assert store.read.balance(run).settled_micro == 250 + 100 + 300
        assert store.read.progress(run).spent_micro == 650
        assert not store.settle(run, result(one, {0, 1}, rent=250))
        assert store.read.balance(run).settled_micro == 650
        assert store.read.ledger.verify().problems == ()
        [(feedback, controls), _] = settled(store._db.connection, run)
        assert feedback.rent_micro == 250
        assert controls.placement == Placement(edge=1, rent_micro=250)


def test_a_restart_gives_the_rent_of_an_open_round_back(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store).run_id
        store.reserve(run, plan(1), policy="random")
    with Store(tmp_path) as store:
        assert store.void_open_rounds(run, "a test") == (1,)
        assert store.read.balance(run).settled_micro == 0
        assert store.read.balance(run).free_micro == 10_000
        assert store.void_open_rounds(run, "a test") == ()
        assert store.read.ledger.verify().problems == ()


def test_a_rent_counts_against_the_run_s_budget(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store, total_micro=549).run_id
        with pytest.raises(BudgetExceededError):
            store.reserve(run, plan(1), policy="random")
        store.reserve(run, plan(1, rent=249), policy="random")
        assert store.read.balance(run).free_micro == 0


def test_a_run_without_a_limit_is_granted_the_rent_too(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store, total_micro=None).run_id
        store.reserve(run, plan(1), policy="random")
        assert store.read.balance(run).granted_micro == 550


def test_a_rent_that_was_not_reserved_cannot_be_paid(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store).run_id
        one = plan(1)
        store.reserve(run, one, policy="random")
        with pytest.raises(InvalidAmountError):
            store.settle(run, result(one, {0}, rent=251))
        with pytest.raises(DuplicateRoundError):
            store.reserve(run, one, policy="random")
        two = plan(2)
        unknown = replace(two.controls, placement=Placement(edge=7, rent_micro=1))
        with pytest.raises(RefusedEntryError):
            store.reserve(run, replace(two, controls=unknown), policy="random")
        assert store.read.last_round(run) == 1


@pytest.mark.parametrize(
    "point",
    [
        "reserve.entries",
        "reserve.before-commit",
        "reserve.committed",
        "reserve.marked",
        "settle.first-entry",
        "settle.before-commit",
        "settle.committed",
        "settle.marked",
    ],
)
def test_whatever_is_interrupted_the_rent_is_paid_once_at_most(tmp_path: Path, point: str) -> None:
    crash = CrashAt()
    one = plan(1)
    with Store(tmp_path, checkpoint=crash) as store:
        run = begun(store).run_id
        crash.name = point
        try:
            store.reserve(run, one, policy="random")
            store.settle(run, result(one, {0}, rent=250))
        except Crash:
            pass
    with Store(tmp_path) as store:
        store.void_open_rounds(run, "a test")
        done = store.read.round_state(run, 1) == "done"
        assert store.read.balance(run).settled_micro == (350 if done else 0)
        assert store.read.balance(run).reserved_micro == 0
        assert done == (point in {"settle.committed", "settle.marked"})
        assert store.read.ledger.verify().problems == ()


@settings(deadline=None, max_examples=15)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 900), st.sampled_from(["paid", "silent", "void"])), max_size=8
    )
)
def test_the_books_add_up_after_any_rounds(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, str]]
) -> None:
    paid = 0
    with Store(tmp_path_factory.mktemp("rents")) as store:
        run = begun(store).run_id
        for number, (rent, end) in enumerate(rounds, start=1):
            one = plan(number, rent=rent)
            store.reserve(run, one, policy="random")
            if end == "void":
                store.void_open_rounds(run, "a test")
            else:
                due = rent if end == "paid" else 0
                store.settle(run, result(one, {1} if due else set(), rent=due))
                paid += due + (200 if due else 0)
        balance = store.read.balance(run)
        assert balance.settled_micro == paid
        assert balance.granted_micro == 10_000
        assert balance.free_micro == 10_000 - paid
        assert store.read.ledger.verify().problems == ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One settled round with a rent."""
    with Store(tmp_path) as store:
        run = begun(store)
        one = plan(1)
        store.reserve(run.run_id, one, policy="random")
        store.settle(run.run_id, result(one, {0}, rent=250))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE rounds SET rent_micro = 1", "round 1, edge 1: rent without its entry"),
        ("UPDATE rounds SET rented_edge = 0", "round 1, edge 0: rent without its entry"),
        (
            "UPDATE rounds SET rented_edge = NULL, rent_micro = 0",
            "round 1: the edge that was rented is missing",
        ),
        ("UPDATE rounds SET controls = x''", "round 1: what was decided has changed"),
        ("UPDATE rounds SET controls = x'80'", "round 1: what was decided has changed"),
        (
            "UPDATE entries SET target = 'client/0' WHERE kind = 'settle' AND client IS NULL",
            "a settle moves money by the wrong way",
        ),
    ],
)
def test_verify_sees_what_was_changed(folder: Path, change: str, words: str) -> None:
    with open_reader(folder) as reader:
        assert reader.ledger.verify().balanced
    assert any(words in problem for problem in problems(folder, change))
