"""Lost and changed history is noticed: never silently fewer rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.books.mark import MARK, MarkFile, read_mark
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.books.schema import DATABASE, VERSION
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import (
    HistoryLostError,
    SchemaVersionError,
    StoreDamagedError,
    StoreFailedError,
    UnreadableDatabaseError,
)
from tests.fakes.stored_runs import (
    begun,
    files_of,
    lay_down,
    small_plan,
    small_result,
    small_view,
    tampered,
)

WAL = f"{DATABASE}-wal"


def _busy_folder(tmp_path: Path) -> tuple[dict[str, bytes], int, str]:
    """Files of a store in mid-flight, with rounds in the WAL; entries and run id."""
    store = Store(tmp_path / "origin")
    run = begun(store)
    store._db.fold_wal()
    for number in (1, 2):
        plan = small_plan(small_view(number, [100, 200]))
        store.reserve(run.run_id, plan, policy="random")
        if number == 1:
            store._db.fold_wal = lambda: None  # type: ignore[method-assign]  # keep the WAL
            store.settle(run.run_id, small_result(plan, {0}))
    files = files_of(tmp_path / "origin")
    entries = store.read.ledger.verify().entries
    store.close()
    return files, entries, run.run_id


def test_one_flipped_bit_in_the_wal_is_never_silent(tmp_path: Path) -> None:
    files, entries, _ = _busy_folder(tmp_path)
    refused = 0
    for at in range(0, len(files[WAL]), 512):
        damaged = bytearray(files[WAL])
        damaged[at] ^= 0x10
        folder = lay_down(tmp_path / f"flip-{at}", {**files, WAL: bytes(damaged)})
        try:
            with Store(folder) as store:
                report = store.read.ledger.verify()
                assert (report.entries, report.problems) == (entries, ())
        except HistoryLostError as error:
            refused += 1
            assert "--accept-lost-history" in str(error)
    assert refused > 10


@pytest.mark.parametrize("damage", ["deleted", "truncated", "foreign"])
def test_a_lost_wal_is_refused(tmp_path: Path, damage: str) -> None:
    files, _, _ = _busy_folder(tmp_path)
    if damage == "deleted":
        del files[WAL]
    elif damage == "truncated":
        files[WAL] = files[WAL][: len(files[WAL]) // 2]
    else:
        files[WAL] = _busy_folder(tmp_path / "other")[0][WAL]
    with pytest.raises(HistoryLostError):
        Store(lay_down(tmp_path / "copy", files))


def test_an_older_copy_of_the_database_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as store:
        run = begun(store)
    old = files_of(tmp_path / "a")
    with Store(tmp_path / "a") as store:
        store.reserve(run.run_id, small_plan(small_view(1, [5])), policy="random")
    new = files_of(tmp_path / "a")
    with pytest.raises(HistoryLostError, match=r"it ends at commit 4, 5 were made"):
        Store(lay_down(tmp_path / "b", {**old, MARK: new[MARK]}))


def test_a_missing_database_or_mark_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as store:
        begun(store)
    files = files_of(tmp_path / "a")
    with pytest.raises(HistoryLostError, match="database is missing"):
        Store(lay_down(tmp_path / "b", {MARK: files[MARK]}))
    with pytest.raises(HistoryLostError, match="mark is missing"):
        Store(lay_down(tmp_path / "c", {DATABASE: files[DATABASE]}))
    with pytest.raises(HistoryLostError, match="no slot"):
        Store(lay_down(tmp_path / "d", {**files, MARK: b"\0" * 1024}))
    with pytest.raises(HistoryLostError, match="damaged"):
        Store(lay_down(tmp_path / "e", {**files, DATABASE: b"not a database" * 1000}))


def test_a_count_of_commits_that_was_taken_out_or_set_back_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as store:
        begun(store)
    files = files_of(tmp_path / "a")
    gone = lay_down(tmp_path / "gone", files)
    tampered(gone, "DELETE FROM meta")
    with open_reader(gone) as read:
        assert "history is lost: commit 0" in read.ledger.verify().problems[0]
    with pytest.raises(UnreadableDatabaseError, match="number of commits is missing"):
        Store(gone)
    anew = lay_down(tmp_path / "anew", files)
    tampered(anew, "UPDATE meta SET value = 0")
    (anew / MARK).unlink()
    with pytest.raises(HistoryLostError, match="mark is missing"):
        Store(anew)


def test_an_operator_can_accept_the_loss_and_the_ledger_says_so(tmp_path: Path) -> None:
    files, entries, run_id = _busy_folder(tmp_path)
    del files[WAL]
    folder = lay_down(tmp_path / "copy", files)
    with Store(folder, accept_lost_history=True) as store:
        report = store.read.ledger.verify()
        assert report.problems == ()
        assert report.entries < entries
        newest = store.read.ledger.show(limit=1)[0]
        assert (newest.kind, newest.amount_micro) == ("note", 0)
        assert "lost history" in newest.target
        assert store.read.progress(run_id).next_round == 1
    Store(folder).close()


@pytest.mark.parametrize("table", ["entries", "edge_results"])
@pytest.mark.parametrize("verb", ["DELETE FROM {}", "UPDATE {} SET run_id = 'x'"])
def test_history_refuses_to_change(store: Store, run: str, table: str, verb: str) -> None:
    plan = small_plan(small_view(1, [100]))
    store.reserve(run, plan, policy="random")
    store.settle(run, small_result(plan, {0}))
    with pytest.raises(sqlite3.IntegrityError, match="can only be appended to"):
        store._db.connection.execute(verb.format(table))


def test_a_round_and_a_run_end_once_even_in_sql(store: Store, run: str) -> None:
    plan = small_plan(small_view(1, [100]))
    store.reserve(run, plan, policy="random")
    store.settle(run, small_result(plan, {0}))
    store.end_run(run, "done")
    sql = store._db.connection
    for statement in (
        "UPDATE rounds SET state = 'void'",
        "UPDATE orders SET void = 1",
        "DELETE FROM orders",
        "DELETE FROM rounds",
        "UPDATE runs SET end_reason = 'other'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            sql.execute(statement)


@pytest.mark.parametrize("found", [0, VERSION + 1])
def test_a_database_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, found: int
) -> None:
    change, words = f"PRAGMA user_version = {found}", "by another fedagent .* another --data-dir"
    Store(tmp_path).close()
    tampered(tmp_path, change)
    kept = {name: (tmp_path / name).read_bytes() for name in (DATABASE, MARK)}
    with pytest.raises(SchemaVersionError, match=words) as caught:
        Store(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(SchemaVersionError, match=words), open_reader(tmp_path):
        pass
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_a_database_that_is_no_coordinators_is_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("CREATE TABLE other (a)")
    with pytest.raises(StoreDamagedError, match="no such table"), open_reader(tmp_path):
        pass


def test_after_a_disk_error_nothing_is_paid_until_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        run = begun(store)

        def broken(_self: MarkFile, _mark: object) -> None:
            raise OSError(5, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(MarkFile, "write", broken)
            with pytest.raises(StoreFailedError):
                store.reserve(run.run_id, small_plan(small_view(1, [1])), policy="random")
        with pytest.raises(StoreFailedError):
            store.reserve(run.run_id, small_plan(small_view(2, [1])), policy="random")
    with Store(tmp_path) as store:
        assert store.void_open_rounds(run.run_id, "restart") == (1,)
        assert store.read.ledger.verify().balanced


def test_a_full_disk_is_fatal_until_reopened(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = begun(store)
        pages = store._db.connection.execute("PRAGMA page_count").fetchone()[0]
        store._db.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreFailedError, match="full"):
            _many_rounds(store, run.run_id)
    with Store(tmp_path) as store:
        store.void_open_rounds(run.run_id, "restart")
        assert store.read.ledger.verify().problems == ()


def test_a_torn_mark_leaves_the_one_before(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        begun(store)
    whole = (tmp_path / MARK).read_bytes()
    newest = read_mark(tmp_path / MARK)
    assert newest is not None
    slot = newest.commits % 2
    (tmp_path / MARK).write_bytes(whole[: slot * 512] + b"\0" * 300 + whole[slot * 512 + 300 :])
    older = read_mark(tmp_path / MARK)
    assert older is not None
    assert older.commits == newest.commits - 1
    Store(tmp_path).close()


def test_what_is_exported_is_what_was_moved(store: Store, run: str) -> None:
    store.reserve(run, small_plan(small_view(1, [1, 2])), policy="random")
    lines = list(store.read.ledger.export("csv"))
    rows = list(store.read.ledger.export("json"))
    shown = [entry for entry in store.read.ledger.show() if entry.client == 1]
    assert lines[0].startswith("seq,run_id,round,kind")
    assert len(lines) == len(rows) + 1 == 4
    assert '"kind": "grant"' in rows[0]
    assert [entry.amount_micro for entry in shown] == [2]


def _many_rounds(store: Store, run_id: str) -> None:
    for number in range(1, 500):
        plan = small_plan(small_view(number, [1] * 8))
        store.reserve(run_id, plan, policy="random")
        store.settle(run_id, small_result(plan, {0}))


@pytest.mark.parametrize("accept", [False, True])
def test_what_cannot_be_opened_offers_no_loss_to_accept(tmp_path: Path, accept: bool) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 999)
    with pytest.raises(HistoryLostError, match="start fresh in another --data-dir") as caught:
        Store(tmp_path, accept_lost_history=accept)
    assert "--accept-lost-history" not in str(caught.value)
