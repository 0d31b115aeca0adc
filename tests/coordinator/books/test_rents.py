"""Rents in the books: reserved with the round, ended with it, once, within the budget."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import LedgerError
from fedagent_coordinator.placement.base import Placement
from tests.fakes.stored_runs import begun, rented_plan, small_result


def test_a_rent_is_reserved_settled_and_read_back(store: Store, run: str) -> None:
    one, two = rented_plan(1), rented_plan(2)
    store.reserve(run, one, policy="random")
    assert store.read.balance(run).reserved_micro == 550
    store.settle(run, small_result(one, {0}, rent=250))
    store.reserve(run, two, policy="random")
    store.settle(run, small_result(two, {0, 1}, rent=0))
    rows = store.read.rounds(run)
    assert [(r.iterations, r.rented, r.rent_micro) for r in rows] == [
        (6, "edge-1", 250),
        (6, "edge-1", 0),
    ]
    assert rows[0].notes == {"rho": 5.7}
    assert rows[0].paid_micro == 100
    assert [row.rent_micro for row in store.read.edge_totals(run).values()] == [0, 250]
    assert store.read.balance(run).settled_micro == 250 + 100 + 300
    assert store.read.progress(run).spent_micro == 650
    assert not store.settle(run, small_result(one, {0, 1}, rent=250))
    assert store.read.balance(run).settled_micro == 650
    assert store.read.ledger.verify().problems == ()
    [(feedback, controls), _] = store.read.settled(run)
    assert feedback.rent_micro == 250
    assert controls.placement == Placement(edge=1, rent_micro=250)


@pytest.mark.parametrize(("total", "rent"), [(549, 250), (549, 249), (None, 250)])
def test_a_rent_counts_against_the_run_s_budget(
    tmp_path: Path, total: int | None, rent: int
) -> None:
    with Store(tmp_path) as store:
        run = begun(store, total_micro=total).run_id
        if total is not None and 300 + rent > total:
            with pytest.raises(LedgerError, match="the round needs"):
                store.reserve(run, rented_plan(1, rent=rent), policy="random")
            return
        store.reserve(run, rented_plan(1, rent=rent), policy="random")
        balance = store.read.balance(run)
        assert (balance.free_micro, balance.granted_micro) == (0, 300 + rent)


def test_a_rent_that_was_not_reserved_or_for_no_work_cannot_be_paid(store: Store, run: str) -> None:
    one = rented_plan(1)
    store.reserve(run, one, policy="random")
    with pytest.raises(LedgerError, match="the rent is"):
        store.settle(run, small_result(one, {0}, rent=251))
    with pytest.raises(LedgerError, match="the rent is"):
        store.settle(run, small_result(one, set(), rent=250))
    with pytest.raises(LedgerError, match="does not come after the last"):
        store.reserve(run, one, policy="random")
    two = rented_plan(2)
    unknown = replace(two.controls, placement=Placement(edge=7, rent_micro=1))
    with pytest.raises(LedgerError, match="the ledger refuses this"):
        store.reserve(run, structs.replace(two, controls=unknown), policy="random")
    assert store.read.last_round(run) == 1
