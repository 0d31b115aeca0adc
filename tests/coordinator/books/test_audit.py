"""`ledger verify` finds what was changed beside the ledger: both ways, row by row."""

from pathlib import Path

import pytest

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import HistoryLostError, LedgerBrokenError
from tests.fakes.stored_runs import (
    DIGEST,
    begun,
    opinions,
    problems,
    rented_plan,
    small_plan,
    small_result,
    small_view,
    volunteers,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two settled rounds, one void, one open, one at a rented edge; two evaluations."""
    with Store(tmp_path) as store:
        run = begun(store).run_id
        for number in (1, 2, 3, 4):
            view = small_view(number, [100, 200, 300], budgets=(1000, 1000), edges=[0, 0, 1])
            plan = small_plan(view)
            store.reserve(run, plan, policy="random")
            if number < 3:
                store.settle(run, small_result(plan, {0, 2}))
            if number == 3:
                store.void_open_rounds(run, "a test")
        rented = rented_plan(5)
        store.reserve(run, rented, policy="random")
        store.settle(run, small_result(rented, {0}, rent=250))
        store.save_model(run, 1, DIGEST, 100)
        store.save_metrics(run, 1, DIGEST, {"accuracy": 0.5})
        store.save_evaluation(run, opinions(1, {0: 0.5, 1: 0.25}))
        store.save_evaluation(run, volunteers(2, [0]))
        assert store.read.ledger.verify().problems == ()
    return tmp_path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE entries SET amount_micro = 1 WHERE kind = 'settle'", "breaks the hash chain"),
        (
            "UPDATE entries SET target = 'client/0' WHERE kind = 'settle' AND client IS NULL",
            "a settle moves money between the wrong accounts",
        ),
        ("DELETE FROM entries WHERE kind = 'settle'", "is missing"),
        (
            (
                "INSERT INTO entries SELECT (SELECT MAX(seq) + 1 FROM entries), run_id, round, "
                "kind, source, target, edge, client, amount_micro, key || '/again', at_ms, payee, "
                "facts, prev_hash, hash FROM entries WHERE kind = 'settle' AND round = 1 "
                "AND client = 0"
            ),
            "ends a reservation that had ended",
        ),
        ("UPDATE accounts SET balance_micro = balance_micro + 1", "stored balances"),
        ("UPDATE edge_budgets SET reserved_micro = 1", "reserved is not what was planned"),
        (
            "UPDATE reservations SET price_micro = 1 WHERE round = 1 AND client = 0",
            "round 1, client 0: reservation without its entry",
        ),
        ("UPDATE rounds SET view = x'00' WHERE round = 1", "round 1: what was decided has changed"),
        ("UPDATE rounds SET controls = x''", "round 5: what was decided has changed"),
        ("UPDATE rounds SET controls = x'80'", "round 5: what was decided has changed"),
        (
            "UPDATE rounds SET rent_micro = 1 WHERE round = 5",
            "round 5, edge 1: rent without its entry",
        ),
        (
            "UPDATE rounds SET rented_edge = 0 WHERE round = 5",
            "round 5, edge 0: rent without its entry",
        ),
        (
            "UPDATE rounds SET rented_edge = NULL, rent_micro = 0",
            "round 5: the edge that was rented is missing",
        ),
        ("UPDATE rounds SET psi = 0.5 WHERE round = 1", "round 1: its outcomes have changed"),
        (
            "UPDATE outcomes SET void = 1 WHERE round = 1 AND client = 0",
            "round 1, client 0: void, the ledger says settle",
        ),
        (
            "UPDATE outcomes SET void = 0 WHERE round = 1 AND client = 1",
            "round 1, client 1: paid, the ledger says void",
        ),
        (
            "UPDATE outcomes SET used = 1 WHERE round = 1 AND client = 1",
            "round 1, client 1: used, the ledger says void",
        ),
        (
            "UPDATE outcomes SET client = 7 WHERE round = 2 AND client = 0",
            "round 2, client 7: outcome without its entries",
        ),
        ("UPDATE outcomes SET tau_s = 7 WHERE round = 2", "round 2: its outcomes have changed"),
        (
            "UPDATE outcomes SET round = 4 WHERE round = 1 AND client = 0",
            "round 4, client 0: outcome without its entries",
        ),
        (
            "DELETE FROM outcomes WHERE round = 1 AND client = 0",
            "round 1, client 0: its outcome is missing",
        ),
        (
            "UPDATE edge_results SET model = 'ab' WHERE round = 1 AND edge = 0",
            "round 1: its outcomes have changed",
        ),
        (
            "DELETE FROM edge_results WHERE round = 1 AND edge = 0",
            "round 1, edge 0: its result is missing",
        ),
        (
            (
                "INSERT INTO edge_results SELECT run_id, 3, edge, '', '', 1.0, 0.0 "
                "FROM edge_results WHERE round = 1 AND edge = 0"
            ),
            "round 3, edge 0: a result without outcomes",
        ),
        ("UPDATE opinions SET score = 0.99 WHERE client = 1", "the evaluation of its model"),
        ("DELETE FROM opinions WHERE client = 1", "the evaluation of its model"),
        ("UPDATE evaluations SET mean = 0.99 WHERE round = 1", "the evaluation of its model"),
        ("UPDATE volunteers SET client = 1", "the evaluation of its model"),
        ("INSERT INTO volunteers SELECT run_id, 1, 3, 0 FROM runs", "the evaluation of its model"),
        ("UPDATE clients SET agent_id = 'somebody' WHERE idx = 0", "is of agent-0, the books say"),
        ("UPDATE edges SET edge_id = 'elsewhere' WHERE idx = 0", "what was decided has changed"),
        ("UPDATE edges SET edge_id = 'elsewhere' WHERE idx = 1", "is of edge-1, the books say"),
        ("UPDATE outcomes SET num_samples = 999 WHERE round = 1", "its outcomes have changed"),
        ("UPDATE runs SET recipe = 'rounds = 2'", "its recipe"),
        ("UPDATE runs SET recipe_digest = 'x'", "its recipe"),
        ("UPDATE models SET digest = 'x'", "round 1: its model has changed"),
        ("DELETE FROM models", "round 1: its model has changed"),
        ("UPDATE metrics SET value = 0.99", "round 1: what was measured has changed"),
        ("DELETE FROM entries WHERE kind = 'fact' AND source = 'metrics'", "is missing"),
        ("DELETE FROM evaluations WHERE round = 2", "volunteers refers to a row that is missing"),
    ],
)
def test_a_change_by_hand_is_found_and_no_coordinator_starts_on_it(
    folder: Path, change: str, words: str
) -> None:
    found = problems(folder, change)
    assert any(words in line for line in found), found
    with pytest.raises((LedgerBrokenError, HistoryLostError)) as caught:
        Store(folder)
    assert "\n" not in str(caught.value)
    assert "--accept-lost-history" in str(caught.value)
    with Store(folder, accept_lost_history=True) as store:
        assert "accepted" in store.read.ledger.show(limit=1)[0].target
    Store(folder).close()


def test_reservations_deleted_with_their_outcomes_are_missed(folder: Path) -> None:
    found = problems(
        folder,
        "DELETE FROM outcomes WHERE round = 2 AND client = 2",
        "DELETE FROM reservations WHERE round = 2 AND client = 2",
    )
    assert "round 2, client 2: its reservation is missing" in found
    assert "round 2, client 2: its outcome is missing" in found
