"""Lost and changed history is noticed: never silently fewer rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.books.mark import MARK, MarkFile, read_mark
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.schema import DATABASE, VERSION
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.errors import HistoryLostError, StoreDamagedError, StoreFailedError
from tests.fakes.stored_runs import (
    begun,
    files_of,
    lay_down,
    play,
    small_plan,
    small_result,
    small_view,
    tampered,
)

WAL = f"{DATABASE}-wal"


def _busy_folder(tmp_path: Path) -> tuple[dict[str, bytes], int, str]:
    """Files of a store in mid-flight, with rounds in the WAL; entries and run id."""
    store = Books(tmp_path / "origin")
    run = begun(store)
    store.fold_wal()
    for number in (1, 2):
        plan = small_plan(small_view(number, [100, 200]))
        store.reserve(run.run_id, plan, policy="random")
        if number == 1:
            store.fold_wal = lambda: None  # type: ignore[method-assign]  # keep the WAL
            store.settle(run.run_id, small_result(plan, {0}))
    files = files_of(tmp_path / "origin")
    entries = store.read.ledger.verify().entries
    store.close()
    return files, entries, run.run_id


def test_one_flipped_bit_in_the_wal_is_never_silent(tmp_path: Path) -> None:
    files, entries, _ = _busy_folder(tmp_path)
    refused = 0
    for at in range(0, len(files[WAL]), 1024):
        damaged = bytearray(files[WAL])
        damaged[at] ^= 0x10
        folder = lay_down(tmp_path / f"flip-{at}", {**files, WAL: bytes(damaged)})
        try:
            with Books(folder) as store:
                report = store.read.ledger.verify()
                assert (report.entries, report.problems) == (entries, ())
        except HistoryLostError as error:
            refused += 1
            assert "--accept-lost-history" in str(error)
    assert refused > 10


def test_a_lost_wal_is_refused_until_an_operator_accepts_it_and_the_ledger_says_so(
    tmp_path: Path,
) -> None:
    files, entries, run_id = _busy_folder(tmp_path)
    short = {**files, WAL: files[WAL][: len(files[WAL]) // 2]}
    with pytest.raises(HistoryLostError):
        Books(lay_down(tmp_path / "short", short))
    del files[WAL]
    folder = lay_down(tmp_path / "copy", files)
    with pytest.raises(HistoryLostError, match=rf"it ends at entry 5, {entries} were written"):
        Books(folder)
    with Books(folder, accept_lost_history=True) as store:
        report = store.read.ledger.verify()
        assert (report.problems, report.entries) == ((), 6)
        newest = store.read.ledger.show(limit=1)[0]
        assert (newest.kind, newest.amount_micro) == ("accept", 0)
        assert newest.target.startswith("accepted: it ends at entry 5")
        assert store.read.progress(run_id).next_round == 1
    Books(folder).close()


def test_a_missing_older_or_foreign_database_or_mark_is_refused(tmp_path: Path) -> None:
    with Books(tmp_path / "a") as store:
        run = begun(store).run_id
    old = files_of(tmp_path / "a")
    with Books(tmp_path / "a") as store:
        store.reserve(run, small_plan(small_view(1, [5])), policy="random")
    files = files_of(tmp_path / "a")
    for at, (left, words) in enumerate(
        (
            ({**old, MARK: files[MARK]}, "it ends at entry 5, 6 were written"),
            ({MARK: files[MARK]}, "database is missing"),
            ({DATABASE: files[DATABASE]}, "mark is missing"),
            ({**files, MARK: b"\0" * 1024}, "no slot"),
        )
    ):
        with pytest.raises(HistoryLostError, match=words):
            Books(lay_down(tmp_path / f"left-{at}", left))
    for accept in (False, True):
        folder = lay_down(tmp_path / f"none-{accept}", {DATABASE: b"not a database" * 1000})
        with pytest.raises(StoreDamagedError, match=r"is damaged .* restore") as caught:
            Books(folder, accept_lost_history=accept)
        assert "--accept-lost-history" not in str(caught.value)


@pytest.mark.parametrize("verb", ["DELETE FROM entries", "UPDATE entries SET amount_micro = 0"])
def test_the_ledger_refuses_to_change(store: Books, run: str, verb: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="can only be appended to"):
        store.connection.execute(verb)


@pytest.mark.parametrize("found", [0, VERSION + 1])
def test_a_database_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, found: int
) -> None:
    change, words = f"PRAGMA user_version = {found}", "by another fedagent .* another --data-dir"
    Books(tmp_path).close()
    tampered(tmp_path, change)
    kept = {name: (tmp_path / name).read_bytes() for name in (DATABASE, MARK)}
    with pytest.raises(StoreDamagedError, match=words) as caught:
        Books(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreDamagedError, match=words), open_reader(tmp_path):
        pass
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_a_database_that_is_no_coordinators_is_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("CREATE TABLE other (a)")
    with pytest.raises(StoreDamagedError, match="no such table"), open_reader(tmp_path):
        pass


def _many_rounds(store: Books, run: str) -> None:
    for number in range(1, 500):
        play(store, run, small_plan(small_view(number, [1] * 8)), {0})


@pytest.mark.parametrize("what", ["mark", "full"])
def test_after_a_disk_error_nothing_is_paid_until_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise OSError(5, "input/output error")

    with Books(tmp_path) as store:
        run = begun(store).run_id
        with monkeypatch.context() as patch:
            if what == "mark":
                patch.setattr(MarkFile, "write", broken)
            else:
                pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
                store.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
            with pytest.raises(StoreFailedError):
                _many_rounds(store, run)
        with pytest.raises(StoreFailedError):
            store.reserve(run, small_plan(small_view(999, [1])), policy="random")
    with Books(tmp_path) as store:
        store.void_open_rounds(run, "restart")
        assert store.read.ledger.verify().problems == ()


def test_a_torn_mark_leaves_the_one_that_was_synced_before(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run, before = begun(store).run_id, read_mark(tmp_path / MARK)
        play(store, run, small_plan(small_view(1, [1])), {0})
    assert before is not None
    whole, found = (tmp_path / MARK).read_bytes(), []
    for slot in (0, 512):
        (tmp_path / MARK).write_bytes(whole[:slot] + b"\0" * 300 + whole[slot + 300 :])
        left = read_mark(tmp_path / MARK)
        assert left is not None
        found.append(left.seq)
    assert min(found) == before.seq < max(found)
