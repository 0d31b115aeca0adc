"""A round in the books: reserved once, settled once, never beyond a budget; and its evaluation."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator.books import write as store_of
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import BookEvaluation, HeldOutEvaluated
from fedagent_coordinator.errors import (
    LedgerError,
    PolicyError,
    UnknownRoundError,
    UnknownRunError,
)
from fedagent_coordinator.placement.base import Placement
from fedagent_task.recipe.text import recipe_from_table
from tests.fakes.stored_runs import (
    DIGEST,
    begun,
    opinions,
    rented_plan,
    small_plan,
    small_result,
    small_view,
)


@pytest.mark.parametrize(
    ("prices", "budgets", "payer", "free"),
    [([600, 500], [1000], "edge 0", 1000), ([6000, 5000], [20_000], "the run", 10_000)],
)
def test_a_plan_beyond_a_budget_is_refused_whole(
    store: Books, run: str, prices: list[int], budgets: list[int], payer: str, free: int
) -> None:
    plan = small_plan(small_view(1, prices, budgets=budgets))
    refused = f"{payer} has {free / 1e6:g} credits, the round needs {sum(prices) / 1e6:g}"
    with pytest.raises(LedgerError, match=refused):
        store.reserve(run, plan, policy="random")
    assert store.read.rounds(run) == []
    assert store.read.balance(run).free_micro == 10_000
    assert store.read.ledger.verify().balanced


def test_prices_up_to_the_largest_cannot_overflow_a_budget(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run = begun(store, clients=10_000)
        view = small_view(1, [10**15] * 10_000, budgets=[10**15])
        with pytest.raises(LedgerError, match=f"the round needs {10**13:,}"):
            store.reserve(run.run_id, small_plan(view), policy="random")


def test_outcomes_must_be_those_of_the_reservations(store: Books, run: str) -> None:
    view = small_view(1, [1, 2, 3])
    store.reserve(run, small_plan(view, [0, 1]), policy="random")
    with pytest.raises(LedgerError, match=r"clients \[0\], outcomes .* for \[2\]"):
        store.settle(run, small_result(small_plan(view, [1, 2]), {1}))
    with pytest.raises(UnknownRoundError):
        store.settle(run, small_result(small_plan(small_view(2, [1])), {0}))
    assert store.read.round_state(run, 1) == "open"


def test_unavailable_or_unknown_clients_cannot_be_reserved(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run = begun(store, clients=2)
        view = replace(small_view(1, [1, 2]), client_available=np.array([True, False]))
        with pytest.raises(PolicyError, match="client 1 is not available"):
            store.reserve(run.run_id, small_plan(view), policy="random")
        with pytest.raises(LedgerError, match="the ledger refuses this"):
            store.reserve(run.run_id, small_plan(small_view(1, [1, 2, 3])), policy="random")
        assert store.read.rounds(run.run_id) == []
        assert store.read.ledger.verify().balanced


@pytest.mark.parametrize("amount", [-1, 1.5, True, 2**63 - 1])
def test_only_whole_micro_credits_are_granted(tmp_path: Path, amount: int) -> None:
    with Books(tmp_path) as store:
        with pytest.raises(LedgerError, match="micro-credits in range"):
            begun(store, total_micro=amount)
        assert store.read.runs() == []
        assert store.read.ledger.verify().balanced


def test_reading_where_there_is_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError), open_reader(tmp_path):
        pass


def test_runs_are_found_resumed_and_ended(store: Books, run: str) -> None:
    assert store.read.find_run("d" * 64) == store.read.run(run)
    assert store.read.find_run("e" * 64) is None
    store.reserve(run, small_plan(small_view(1, [1])), policy="random")
    assert store.end_run(run, "stopped") == (1,)
    assert store.end_run(run, "stopped") == ()
    assert store.read.open_run() is None
    balance = store.read.balance(run)
    assert (balance.free_micro, balance.reserved_micro, balance.voided_micro) == (10_000, 0, 1)
    with pytest.raises(LedgerError, match="has ended"):
        store.reserve(run, small_plan(small_view(2, [1])), policy="random")
    assert store.read.run(run[:8]).end_reason == "stopped"
    assert store.read.ledger.verify().balanced


def test_progress_models_and_metrics_are_remembered(store: Books, run: str) -> None:
    fresh = store.read.progress(run)
    assert (fresh.next_round, fresh.rounds_done, fresh.model) == (1, 0, "")
    for number in range(1, 9):
        plan = small_plan(small_view(number, [10]))
        store.reserve(run, plan, policy="random")
        store.settle(run, small_result(plan, {0}))
        digest = f"{number:064x}"
        store.save_model(run, number, digest, 1234)
        store.save_metrics(run, HeldOutEvaluated(number, digest, {"accuracy": 1.0 / number}))
    progress = store.read.progress(run)
    assert (progress.next_round, progress.rounds_done) == (9, 8)
    assert (progress.spent_micro, progress.model_size) == (80, 1234)
    assert progress.model == f"{8:064x}"
    best = store.read.models.best(run)
    assert best is not None
    assert best.round == 1
    assert store.read.models.to_keep() == {f"{n:064x}" for n in (1, 4, 5, 6, 7, 8)}
    last = store.read.rounds(run, last=2)
    assert [row.round for row in last] == [7, 8]
    assert last[-1].metrics == {"accuracy": 0.125}
    assert last[-1].timing_ms == {"observe": 1.5}


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({2: (1, 0.9), 3: (2, 0.5)}, 1),
        ({2: (1, 0.9), 3: (1, 0.1), 4: (3, 0.5)}, 3),
        ({2: (1, 0.5), 3: (2, 0.5)}, 2),
        ({}, None),
    ],
    ids=["highest", "what was said last of a model", "the newest of equals", "nobody said"],
)
def test_the_best_model_on_devices_is_the_one_that_the_rounds_began_with(
    tmp_path: Path, scores: dict[int, tuple[int, float]], best: int | None
) -> None:
    table: dict[str, object] = {
        "name": "scored",
        "model": {"kind": "linear", "features": 1},
        "rounds": {"count": 9, "deadline_s": 1.0},
        "budget": {"per_edge": 1},
        "evaluation": {"on_device": True},
    }
    recipe = msgspec.json.encode(recipe_from_table(table)).decode()
    with Books(tmp_path) as store:
        run = store.begin_run(recipe_digest="d" * 64, recipe=recipe, seed=7, total_micro=None)
        for number in range(1, 5):
            store.save_model(run.run_id, number, f"{number:064x}", 9)
        for number, (model, score) in scores.items():
            said = {"device_score": score}
            store.save_metrics(run.run_id, HeldOutEvaluated(number, f"{model:064x}", said))
        found = store.read.models.best(run.run_id)
        assert (found.round if found is not None else None) == best


def test_outcomes_devices_and_edges_tell_what_happened(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run = begun(store, clients=4)
        plan = small_plan(small_view(1, [5, 6, 7], budgets=[100, 100], edges=[0, 1, 1]), [2, 0, 1])
        store.reserve(run.run_id, plan, policy="random")
        store.settle(run.run_id, small_result(plan, {0, 2}, late={2}))
        balance = store.read.balance(run.run_id)
        assert (balance.reserved_micro, balance.settled_micro, balance.voided_micro) == (0, 12, 6)
        outcomes = store.read.outcomes(run.run_id, 1)
        assert [o.agent for o in outcomes] == ["agent-2", "agent-0", "agent-1"]
        assert [(o.in_time, o.paid_micro) for o in outcomes] == [(False, 7), (True, 5), (False, 0)]
        assert outcomes[0].dt_s is None
        devices = store.read.devices(run.run_id)
        assert [d.ordered for d in devices] == [1, 1, 1, 0]
        assert [d.last_status for d in devices] == ["arrived", "missed", "arrived", None]
        assert [e.spent_micro for e in store.read.edge_results(run.run_id)] == [5, 7]
        view, selection = store.read.plan(run.run_id, 1)
        assert selection.pairs.tolist() == [2, 0, 1]
        assert np.array_equal(view.client_price, plan.view.client_price)


def test_a_label_waits_for_its_index_and_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of, "MAX_WAITING", 2)
    with Books(tmp_path) as store:
        run_id = begun(store).run_id
        indices = store.indices(run_id)
        before = indices.sizes()[0]
        indices.label_clients({"lost": "a", "kitchen-id": "kitchen", "hall-id": "hall"})
        assert indices.sizes()[0] == before
        assert indices.clients(["kitchen-id", "lost"]).tolist() == [before, before + 1]
        labels = dict(
            store.read._db.execute(
                "SELECT agent_id, label FROM clients WHERE run_id = ? AND idx >= ?",
                (run_id, before),
            ).fetchall()
        )
        assert labels == {"kitchen-id": "kitchen", "lost": ""}


def test_a_rent_that_was_not_reserved_or_for_no_work_cannot_be_paid(store: Books, run: str) -> None:
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


def test_opinions_come_back_by_client_with_their_mean(store: Books, run: str) -> None:
    assert store.save_evaluation(run, opinions(0, {2: 0.9, 1: 0.3}))
    assert store.save_evaluation(run, opinions(1, {1: 0.1}))
    read = store.read.evaluations
    first, second = read.rows(run)
    assert (first.round, first.slot, first.mode, first.digest) == (0, 1, "report", DIGEST)
    assert (first.metric, first.asked, first.answered, first.mean) == ("accuracy", 3, 2, 0.6)
    assert (first.reasons, first.seconds, second.mean) == ({"late": 1}, 0.25, 0.1)
    rows = read.answers(run)
    found = [(row.round, row.client, row.score) for row in rows]
    assert found == [(0, 1, 0.3), (0, 2, 0.9), (1, 1, 0.1)]
    assert (rows[0].agent, rows[0].samples, rows[0].epsilon) == ("agent-1", 10, 0.5)
    assert read.answers(run, 1) == rows[2:]
    assert read.last_opinions(run) == {1: 0.1, 2: 0.9}
    assert store.read.ledger.verify().problems == ()


def test_a_model_is_evaluated_once_and_no_answer_is_an_evaluation(store: Books, run: str) -> None:
    assert store.save_evaluation(run, opinions(1, {}, reasons={"restart": 3}))
    assert not store.save_evaluation(run, opinions(1, {0: 0.5}))
    (found,) = store.read.evaluations.rows(run)
    assert (found.answered, found.mean, found.reasons) == (0, None, {"restart": 3})


@pytest.mark.parametrize(
    "found",
    [
        opinions(1, {0: 1.5}),
        opinions(1, {0: 0.5}, samples=np.zeros(1, dtype=np.int64)),
        opinions(1, {999: 0.5}),
        opinions(1, {0: 0.5}, asked=0),
    ],
)
def test_what_cannot_be_is_refused_whole(store: Books, run: str, found: BookEvaluation) -> None:
    with pytest.raises(LedgerError, match="the ledger refuses this"):
        store.save_evaluation(run, found)
    assert store.read.evaluations.rows(run) == []
