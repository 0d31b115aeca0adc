"""Closed rounds: a store that closes rounds is the same to everybody as one that never does."""

import csv
import hashlib
import json
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.backup import back_up
from fedagent_coordinator.books import archive
from fedagent_coordinator.books.archive import ARCHIVE, NEVER
from fedagent_coordinator.books.read import Reader, open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import HeldOutEvaluated, Proof
from fedagent_coordinator.errors import (
    HistoryLostError,
    LedgerError,
    StoreDamagedError,
    StoreFailedError,
    UnknownRoundError,
)
from fedagent_node.data_dir import load_or_create
from tests.fakes.stored_runs import (
    Crash,
    CrashAt,
    begun,
    opinions,
    play,
    problems,
    recompute,
    rented_plan,
    small_plan,
    small_result,
    small_view,
    volunteers,
)
from tests.typed import fedagent

ROUNDS, CLOSED = 40, 20
POINTS = (
    *("prune.written", "prune.named", "prune.dropped"),
    *("prune.before-commit", "prune.committed", "prune.marked"),
    *("compact.begun", "compact.written"),
)


def opened(folder: Path, point: str = "") -> Books:
    return Books(folder, identity=load_or_create(folder), checkpoint=CrashAt(point))


def played(store: Books, run: str, number: int, paid: set[int]) -> None:
    plan = rented_plan(number) if number % 3 == 0 else small_plan(small_view(number, [10, 20, 30]))
    store.reserve(run, plan, policy="random")
    result = small_result(plan, paid, rent=250 * (number % 2) if paid and number % 3 == 0 else 0)
    proof = Proof(claim=b"%d" % number, public=bytes(32), signature=bytes(64))
    assert store.settle(run, structs.replace(result, proofs=dict.fromkeys(paid, proof)))
    store.save_model(run, number, f"{number:064d}", 9)
    store.save_metrics(run, HeldOutEvaluated(number, f"{number:064d}", {"accuracy": 0.5}))
    if number % 7 == 0:
        once = {2: 0.75} if number == 7 else {}
        store.save_evaluation(run, opinions(number, {0: 0.25, 1: 0.5} | once))
    elif number % 7 == 1:
        store.save_evaluation(run, volunteers(number, [0, 1, 2] if number == 1 else [0, 1]))
    store.snapshot(run, number, {"n": np.array([number])})


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rounds, the first twenty closed in two pieces."""
    folder = tmp_path_factory.mktemp("books")
    with opened(folder) as store:
        run = begun(store, total_micro=100_000).run_id
        for number in range(1, ROUNDS + 1):
            played(store, run, number, {0, 1})
        for _ in range(2):
            store.prune(run, keep_rounds=ROUNDS - CLOSED, most=CLOSED // 2, by="test")
    return folder


@pytest.fixture
def folder(books: Path, tmp_path: Path) -> Path:
    return shutil.copytree(books, tmp_path / "copy")


def changed(folder: Path, change: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / ARCHIVE)) as sql, sql:
        sql.execute(change, values)


def answers(reader: Reader, run: str) -> Iterator[object]:
    yield reader.balance(run)
    yield [getattr(reader.progress(run), name) for name in ("next_round", "rounds_done", "model")]
    yield reader.devices(run)
    yield [(row.rent_micro, row.spent_micro) for row in reader.edge_totals(run).values()]
    yield reader.paid_updates(run)
    yield reader.models.metrics(run)
    yield reader.evaluations.rows(run)
    yield reader.evaluations.last_opinions(run)
    found = reader.evaluations.answers(run)
    yield {one.client: one.round for one in found if one.score is None}
    yield reader.free_before(run, reader.last_round(run))
    for full in (False, True):
        report = reader.ledger.verify(full=full)
        yield report.problems, list(report.runs.values())
    moves = list(csv.DictReader(reader.ledger.export()))
    told = ("round", "kind", "source", "target", "amount_micro", "payee")
    yield [tuple(one[name] for name in told) for one in moves]
    with reader.whole(run) as whole:
        yield [
            (row.round, row.in_time, row.paid_micro, row.rent_micro) for row in whole.rounds(run)
        ]
        yield whole.outcomes(run)
        yield whole.edge_results(run)
        yield whole.evaluations.answered(run)
        yield whole.evaluations.answers(run)


@settings(max_examples=4, deadline=None)
@given(
    paid=st.lists(st.sets(st.integers(0, 1)), min_size=12, max_size=25),
    closing=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    unlimited=st.booleans(),
)
def test_closing_changes_nothing_that_anybody_is_told(
    paid: list[set[int]], closing: list[tuple[int, int]], unlimited: bool
) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        total = None if unlimited else 100_000
        with opened(Path(one)) as plain, opened(Path(other)) as closes:
            runs = [begun(store, total_micro=total).run_id for store in (plain, closes)]
            for number, clients in enumerate(paid, 1):
                for store, run in zip((plain, closes), runs, strict=True):
                    played(store, run, number, clients)
                keep, most = closing[number % len(closing)]
                closes.prune(runs[1], keep_rounds=keep, most=most, by="test")
            assert closes.read.closed_until(runs[1]) >= 1
            for store, run in zip((plain, closes), runs, strict=True):
                again = small_plan(small_view(1, [10, 20, 30]))
                assert not store.settle(run, small_result(again, {0}))
                with pytest.raises(LedgerError):
                    store.reserve(run, again, policy="random")
                assert not store.save_evaluation(run, opinions(7, {0: 1.0}))
        with open_reader(Path(one)) as was, open_reader(Path(other)) as now:
            for expected, found in zip(answers(was, runs[0]), answers(now, runs[1]), strict=True):
                assert found == expected


def test_pruned_rounds_say_so_and_the_newest_stay(folder: Path) -> None:
    with open_reader(folder) as reader:
        run = reader.run().run_id
        assert [row.round for row in reader.rounds(run)] == list(range(CLOSED + 1, ROUNDS + 1))
        with pytest.raises(UnknownRoundError, match=r"round 5 .* before round 21"):
            reader.plan(run, 5)
        assert reader.plan(run, CLOSED + 1)[0].round == CLOSED + 1
        assert next(one.view.round for one in reader.logged(run, since=CLOSED)) == CLOSED + 1
        assert reader.prunable(run).last == ROUNDS - NEVER


def test_nothing_goes_without_a_snapshot_to_go_on_from(store: Books, run: str) -> None:
    for number in range(1, 20):
        play(store, run, small_plan(small_view(number, [1])), {0})
    assert store.read.prunable(run).rounds == 0


def test_numbers_that_were_skipped_are_no_rounds_that_stay(tmp_path: Path) -> None:
    numbers = [*range(1, 16), *range(2500, 2515)]
    with opened(tmp_path) as store:
        run = begun(store, total_micro=None).run_id
        for number in numbers:
            play(store, run, small_plan(small_view(number, [10] * 4)), {0, 2})
            if number in {10, 2510, 2514}:
                store.snapshot(run, number, {"n": np.array([number])})
        assert store.prune(run, keep_rounds=25, most=10_000, by="operator").last == 5
        assert store.prune(run, most=12, by="operator").last == 2501
        assert store.prune(run, most=10_000, by="operator").last == 2504
        assert store.read.ledger.verify(full=True).problems == ()
        with store.read.whole(run) as whole:
            assert [row.round for row in whole.rounds(run)] == numbers


def test_a_changed_archive_is_noticed(folder: Path) -> None:
    changed(folder, "UPDATE closed SET body = substr(body, 1, 99) WHERE first = 11")
    with open_reader(folder) as reader:
        found = reader.ledger.verify().problems
        assert "the orders of rounds 11 to 20 have changed" in found[0]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE closed SET last = 19 WHERE first = 11",
        "UPDATE closed SET digest = zeroblob(32) WHERE first = 11",
        "DELETE FROM closed",
        "DELETE FROM entries WHERE kind = 'close'",
        "INSERT INTO closed SELECT run_id, 21, 30, digest, by, at_ms FROM closed WHERE first = 1",
        "DELETE FROM orders WHERE round = 26",
    ],
)
def test_nothing_is_dropped_but_by_a_row_that_says_so(folder: Path, change: str) -> None:
    assert problems(folder, change)


def test_a_full_audit_finds_what_somebody_with_the_key_has_forged(folder: Path) -> None:
    with open_reader(folder) as reader:
        (piece, digest), _ = archive.closed_pieces(reader._db)
    rows = archive.read(folder, piece, digest)
    first, *rest = rows["orders"]
    rows["orders"] = [(*first[:-1], bytes(63) + b"x"), *rest]
    columns = {table: list(zip(*found, strict=True)) for table, found in rows.items()}
    body = zlib.compress(msgspec.msgpack.encode(columns))
    changed(folder, "UPDATE closed SET body = ? WHERE first = 1", body)
    forged = hashlib.sha256(body).hexdigest()
    change = f"UPDATE closed SET digest = x'{forged}' WHERE first = 1"
    recompute(folder, change, key=load_or_create(folder))
    with open_reader(folder) as reader:
        assert reader.ledger.verify().problems == ()
        (problem,) = reader.ledger.verify(full=True).problems
        assert problem.startswith("round 1: its rows have changed")


def test_a_lost_archive_is_missed(folder: Path) -> None:
    changed(folder, "DELETE FROM closed WHERE first = 1")
    with pytest.raises(HistoryLostError, match=r"rounds 1 to 10 are missing"):
        opened(folder)
    (folder / ARCHIVE).unlink()
    with open_reader(folder) as reader, pytest.raises(StoreDamagedError, match="cannot be read"):
        list(reader.ledger.export())


def test_commands_read_closed_rounds_and_close_more(folder: Path) -> None:
    told = ("--data-dir", str(folder))
    rounds = json.loads(fedagent("status", "--rounds", "35", "--json", *told).stdout)["rounds"]
    assert [row["round"] for row in rounds] == list(range(6, 41))
    said = fedagent("prune", "--keep-rounds", "15", "--json", *told)
    assert '"first":21,"last":25' in said.stdout
    (folder / ARCHIVE).unlink()
    said = fedagent("export", "--ledger", str(folder / "l.csv"), *told)
    assert said.returncode
    assert "restore archive.db from a copy of the data directory" in said.stderr


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_step_leaves_it_whole(folder: Path, point: str) -> None:
    store = opened(folder, point)
    run = store.read.run().run_id

    def pruned(store: Books) -> None:
        store.prune(run, most=5, by="operator")
        store.compact()

    with pytest.raises(Crash):
        pruned(store)
    store.connection.close()
    with opened(folder) as store:
        assert store.read.ledger.verify().problems == ()
        pruned(store)
        assert store.read.closed_until(run) in {CLOSED + 5, CLOSED + 10}
        assert store.read.ledger.verify(full=True).problems == ()


def test_large_rounds_are_closed_in_several_pieces(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MANY_ORDERS", 5)
    with opened(folder) as store:
        run = store.read.run().run_id
        assert store.prune(run, most=10, by="operator").last == CLOSED + 10
        assert len(archive.closed_pieces(store.connection)) >= 2 + 5
        assert store.read.ledger.verify(full=True).problems == ()


def test_no_row_is_dropped_for_what_is_not_what_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store, monkeypatch.context() as disk:
        disk.setattr(
            archive,
            "_keep",
            lambda path, *_: changed(
                path.parent,
                "INSERT OR REPLACE INTO closed SELECT run_id, 21, ? FROM closed",
                b"another",
            ),
        )
        run = store.read.run().run_id
        with pytest.raises(StoreFailedError, match="have changed"):
            store.prune(run, most=5, by="operator")
        assert len(store.read.rounds(run)) == ROUNDS - CLOSED
    with opened(folder) as store:
        assert store.prune(run, most=5, by="operator").last == CLOSED + 5
        assert store.read.ledger.verify(full=True).problems == ()


def test_a_backup_beside_rounds_and_pruning_is_whole(folder: Path, tmp_path: Path) -> None:
    copies = [tmp_path / f"copy-{number}" for number in range(3)]
    thread = threading.Thread(target=lambda: [back_up(folder, copy) for copy in copies])
    with opened(folder) as store:
        run, number = store.read.run().run_id, ROUNDS
        thread.start()
        while thread.is_alive():
            number += 1
            play(store, run, small_plan(small_view(number, [1] * 4)), {0})
            store.snapshot(run, number, {"n": np.array([number])})
            store.prune(run, most=1, by="coordinator")
        thread.join()
    for copy in copies:
        with open_reader(copy) as reader:
            assert reader.ledger.verify(full=True).problems == ()
