"""`ledger verify` finds what was changed beside the ledger: both ways, row by row."""

import sqlite3
from pathlib import Path

import pytest

from fedagent_coordinator.database.connection import DATABASE
from fedagent_coordinator.reader import open_reader
from fedagent_coordinator.store import Store

from .money import begun, small_plan, small_result, small_view


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two settled rounds, one void, one open; three clients at two edges."""
    with Store(tmp_path) as store:
        run = begun(store)
        for number in (1, 2, 3, 4):
            view = small_view(number, [100, 200, 300], budgets=(1000, 1000), edges=[0, 0, 1])
            plan = small_plan(view)
            store.reserve(run.run_id, plan, policy="random")
            if number < 3:
                store.settle(run.run_id, small_result(plan, {0, 2}))
            if number == 3:
                store.void_open_rounds(run.run_id, "a test")
        assert store.read.ledger.verify().problems == ()
    return tmp_path


def problems(folder: Path, *changes: str) -> tuple[str, ...]:
    """Return what is found after an intruder's statements."""
    with sqlite3.connect(folder / DATABASE) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            db.execute(f"DROP TRIGGER {name}")
        for change in changes:
            db.execute(change)
    db.close()
    with open_reader(folder) as reader:
        report = reader.ledger.verify()
    assert report.balanced == (not report.problems)
    return report.problems


@pytest.mark.parametrize(
    ("change", "words"),
    [
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
        (
            "UPDATE outcomes SET num_samples = 9 WHERE round = 2 AND client = 0",
            "round 2: its outcomes have changed",
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
            "DELETE FROM outcomes WHERE round = 1 AND client = 0",
            "round 1, client 0: its outcome is missing",
        ),
        (
            (
                "INSERT INTO edge_results SELECT run_id, 3, edge, '', '', 1.0 "
                "FROM edge_results WHERE round = 1 AND edge = 0"
            ),
            "round 3, edge 0: a result without outcomes",
        ),
        (
            "UPDATE reservations SET price_micro = 1 WHERE round = 1 AND client = 0",
            "round 1, client 0: reservation without its entry",
        ),
    ],
)
def test_a_change_by_hand_is_found(folder: Path, change: str, words: str) -> None:
    assert words in problems(folder, change)


def test_reservations_deleted_with_their_outcomes_are_missed(folder: Path) -> None:
    found = problems(
        folder,
        "DELETE FROM outcomes WHERE round = 2 AND client = 2",
        "DELETE FROM reservations WHERE round = 2 AND client = 2",
    )
    assert "round 2, client 2: its reservation is missing" in found
    assert "round 2, client 2: its outcome is missing" in found


def test_an_outcome_of_a_round_that_has_not_ended_is_found(folder: Path) -> None:
    found = problems(
        folder,
        "UPDATE outcomes SET round = 4 WHERE round = 1 AND client = 0",
    )
    assert "round 4, client 0: outcome without its entries" in found
