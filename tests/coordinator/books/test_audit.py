"""`ledger verify` finds what was changed beside the ledger: both ways, row by row."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.books import write as store_of
from fedagent_coordinator.books.ledger import BOUND, digest_of
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.schema import prepare
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import HeldOutEvaluated
from fedagent_coordinator.errors import HistoryLostError
from fedagent_node.data_dir import load_or_create
from tests.fakes.stored_runs import (
    DIGEST,
    begun,
    opinions,
    play,
    problems,
    recompute,
    rented_plan,
    small_plan,
    small_result,
    small_view,
    tampered,
    volunteers,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two settled rounds, one void, one open, one at a rented edge; two evaluations."""
    with Books(tmp_path) as store:
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
        store.save_metrics(run, HeldOutEvaluated(1, DIGEST, {"accuracy": 0.5}))
        store.save_evaluation(run, opinions(1, {0: 0.5, 1: 0.25}))
        store.save_evaluation(run, volunteers(2, [0]))
        assert store.read.ledger.verify().problems == ()
    return tmp_path


def test_what_an_open_round_has_reserved_is_shown_too(folder: Path) -> None:
    with Books(folder) as store:
        moved: Counter[str] = Counter()
        for entry in store.read.ledger.show(limit=-1):
            moved[entry.kind] += entry.amount_micro
        reserved = store.read.balance(store.read.run().run_id).reserved_micro
        assert moved["reserve"] - moved["settle"] - moved["void"] == reserved > 0


CHANGED = "its rows have changed"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE entries SET amount_micro = 1 WHERE kind = 'settle'", "breaks the hash chain"),
        ("DELETE FROM entries WHERE kind = 'settle'", "is missing"),
        (
            "UPDATE entries SET voided_micro = voided_micro + 1 WHERE kind = 'settle'",
            "does not say where the money is",
        ),
        ("UPDATE clients SET paid_micro = 7 WHERE idx = 0", "its orders do not add up"),
        ("UPDATE clients SET agent_id = 'somebody' WHERE idx = 0", f"round 1: {CHANGED}"),
        ("UPDATE edges SET edge_id = 'elsewhere' WHERE idx = 1", f"round 1: {CHANGED}"),
        ("UPDATE clients SET label = 'kitchen' WHERE idx = 1", CHANGED),
        ("UPDATE orders SET unpaid = 1, in_time = 0, used = 0", f"round 1: {CHANGED}"),
        ("UPDATE rounds SET view = x'00' WHERE round = 1", "round 1: what was decided has changed"),
        ("UPDATE rounds SET controls = x''", "round 5: what was decided has changed"),
        (
            """INSERT INTO edge_results SELECT run_id, 3, edge, '', '', 1.0, 0.0, 0.0
            FROM edge_results WHERE round = 1 AND edge = 0""",
            f"round 3: {CHANGED}",
        ),
        ("UPDATE runs SET recipe = 'rounds = 2'", CHANGED),
        ("DELETE FROM evaluations WHERE round = 2", "answers refers to a row that is missing"),
    ],
)
def test_a_change_by_hand_is_found_and_no_coordinator_starts_on_it(
    folder: Path, change: str, words: str
) -> None:
    found = problems(folder, change)
    assert any(words in line for line in found), found
    with pytest.raises(HistoryLostError) as caught:
        Books(folder)
    assert "\n" not in str(caught.value)
    assert "--accept-lost-history" in str(caught.value)
    with Books(folder, accept_lost_history=True) as store:
        assert "accepted" in store.read.ledger.show(limit=1)[0].target
    Books(folder).close()


def test_a_reservation_ends_once(folder: Path) -> None:
    recompute(
        folder,
        "DROP INDEX a_round_ends_once",
        """INSERT INTO entries SELECT (SELECT MAX(seq) + 1 FROM entries), run_id, round, 'void', 0,
        digest, note, at_ms, granted_micro, free_micro, reserved_micro, settled_micro, voided_micro,
        hash FROM entries WHERE kind = 'settle' AND round = 1""",
    )
    with open_reader(folder) as reader:
        found = reader.ledger.verify().problems
    assert any("does not fit any reservation" in line for line in found), found


def test_somebody_without_the_key_cannot_write_the_books_again(tmp_path: Path) -> None:
    with Books(tmp_path, identity=load_or_create(tmp_path)) as store:
        play(store, begun(store).run_id, small_plan(small_view(1, [100])), {0})
    recompute(tmp_path, "UPDATE orders SET num_samples = 999")
    with open_reader(tmp_path) as reader:
        assert reader.ledger.verify().problems == (
            "the head of the ledger is not signed by this coordinator",
        )


def test_a_start_on_a_long_ledger_looks_at_the_newest_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of, "VERIFIED_AT_START", 1)
    tampered(folder, "UPDATE orders SET tau_s = 7 WHERE round = 1")
    Books(folder).close()
    tampered(folder, "UPDATE evaluations SET asked = 9 WHERE round = 2")
    with pytest.raises(HistoryLostError):
        Books(folder)


UNBOUND = {
    *("meta", "entries", "snapshots", "clients", "edges", "closed"),
    *("rounds.view", "rounds.selection", "rounds.controls"),
}
"""Counted by the mark, the chain itself, sums, digests of their own."""


def test_every_other_column_is_bound() -> None:
    read: set[str] = set()

    def note(action: int, table: str | None, column: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ:
            read.add(f"{table}.{column}")
        return sqlite3.SQLITE_OK

    with closing(sqlite3.connect(":memory:")) as sql:
        prepare(sql, "")
        tables = sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {
            f"{table}.{row[1]}"
            for (table,) in tables
            for row in sql.execute(f"PRAGMA table_info({table})")
            if not UNBOUND & {table, f"{table}.{row[1]}"}
        }
        sql.set_authorizer(note)
        for what in BOUND:
            digest_of(sql, (what, "r", 1))
    assert columns <= read
