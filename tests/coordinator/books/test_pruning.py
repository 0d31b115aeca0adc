"""Pruning closes old rounds, and takes nothing that the ledger promises."""

import sqlite3
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.backup import back_up
from fedagent_coordinator.books import pruning, segments
from fedagent_coordinator.books.connection import DATABASE
from fedagent_coordinator.books.ledger import Transfer
from fedagent_coordinator.books.pruning import NEVER, bytes_held
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import (
    LedgerError,
    OversizedBooksError,
    PrunedRoundError,
    StoreFailedError,
)
from fedagent_node.data_dir import load_or_create
from tests.fakes.stored_runs import (
    Crash,
    CrashAt,
    begun,
    play,
    recompute,
    small_plan,
    small_view,
)
from tests.typed import fedagent

ROUNDS, SNAPSHOTS = 30, (10, 20)
POINTS = (
    *("prune.written", "prune.named", "prune.dropped"),
    *("prune.before-commit", "prune.committed", "prune.marked"),
    *("compact.begun", "compact.written"),
)


def filled(folder: Path, rounds: int = ROUNDS, devices: int = 4) -> str:
    """Rounds of a few devices, with the policy's state after the tenth and the twentieth."""
    with Store(folder, identity=load_or_create(folder)) as store:
        run = begun(store, total_micro=None, clients=devices).run_id
        for number in range(1, rounds + 1):
            play(store, run, small_plan(small_view(number, [10] * devices)), {0, 2})
            if number in SNAPSHOTS:
                store.snapshot(run, number, "random", {"n": np.array([number])})
    return run


def test_the_ledger_is_whole_and_pruned_rounds_say_so(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with open_reader(tmp_path) as reader:
        before = reader.ledger.verify()
        outcomes, rows = reader.outcomes(run), reader.rounds(run)
        updates = reader.paid_updates(run)
        assert updates == Counter(one.agent for one in outcomes if one.paid_micro)
        assert reader.prunable(run, keep_rounds=25).last == 5
        assert reader.prunable(run, keep_rounds=1).last == SNAPSHOTS[0]
        assert not reader.prunable(run, before_ms=1).rounds
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        assert store.prune(run, keep_rounds=25, most=3, by="operator").rounds == 3
        assert store.prune(run, keep_rounds=25, most=3, by="operator").rounds == 2
        assert store.prune(run, keep_rounds=25, most=3, by="operator").rounds == 0
    with open_reader(tmp_path) as reader:
        after = reader.ledger.verify()
        assert after.problems == ()
        assert after.entries == before.entries + 2
        assert after.runs == before.runs
        assert reader.paid_updates(run) == updates
        assert [row.round for row in reader.rounds(run)] == list(range(6, 31))
        with reader.whole(run) as whole:
            assert (whole.outcomes(run), whole.rounds(run)) == (outcomes, rows)
        with pytest.raises(PrunedRoundError, match=r"round 5 .* before round 6"):
            reader.plan(run, 5)
        assert reader.plan(run, 6)[0].round == 6
        assert [feedback.view.round for feedback in reader.learnt(run)] == list(range(6, 31))


def test_numbers_that_were_skipped_are_no_rounds_that_stay(tmp_path: Path) -> None:
    numbers = [*range(1, 16), *range(2500, 2515)]
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        run = begun(store, total_micro=None).run_id
        for number in numbers:
            play(store, run, small_plan(small_view(number, [10] * 4)), {0, 2})
            if number in {10, 2510}:
                store.snapshot(run, number, "random", {"n": np.array([number])})
        assert store.read.prunable(run, keep_rounds=25).last == 5
        assert store.prune(run, keep_rounds=25, most=10_000, by="operator").last == 5
        store.snapshot(run, numbers[-1], "random", {"n": np.array([0])})
        assert store.prune(run, most=12, by="operator").last == 2501
        assert store.prune(run, most=10_000, by="operator").last == 2504
        assert len(list((tmp_path / "archive").iterdir())) == 3
        assert store.read.ledger.verify(full=True).problems == ()
        with store.read.whole(run) as whole:
            assert [row.round for row in whole.rounds(run)] == numbers


def test_nothing_goes_without_a_snapshot_to_go_on_from(tmp_path: Path) -> None:
    run = filled(tmp_path, rounds=SNAPSHOTS[0] - 1)
    with open_reader(tmp_path) as reader:
        assert reader.prunable(run).rounds == 0


def test_the_newest_rounds_never_go(tmp_path: Path) -> None:
    run = filled(tmp_path, rounds=SNAPSHOTS[0] + 4)
    with open_reader(tmp_path) as reader:
        assert reader.prunable(run).last == SNAPSHOTS[0] + 4 - NEVER


def test_nothing_is_dropped_but_by_a_row_that_says_so(tmp_path: Path) -> None:
    run = filled(tmp_path)
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        store.prune(run, most=5, by="operator")
        sql = store._db.connection
        more = (
            "INSERT INTO closed SELECT run_id, {}, 8, digest, size_bytes, summary, by, at_ms "
            "FROM closed"
        )
        sql.execute("CREATE TEMP TABLE again AS SELECT * FROM main.rounds WHERE round = 6")
        sql.execute("UPDATE again SET round = 5")
        for change, why in (
            ("DELETE FROM closed", "appended"),
            (more.format(5), "in their order"),
            (more.format(7), "in their order"),
            ("DELETE FROM rounds WHERE round = 6", "never deleted"),
            ("DELETE FROM outcomes WHERE round = 6", "appended"),
            ("DELETE FROM entries WHERE source = 'closed'", "appended"),
            ("INSERT INTO rounds SELECT * FROM again", "are closed"),
        ):
            with pytest.raises(sqlite3.IntegrityError, match=why):
                sql.execute(change)
        move = Transfer(
            kind="void",
            source="treasury",
            target="treasury",
            amount_micro=1,
            key=f"{run}/3/0/end",
            round=3,
        )
        with (
            pytest.raises(LedgerError, match="are closed"),
            store._db.transaction("test"),
        ):
            store._db.ledger.append(run, [move], 0)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_step_leaves_it_whole(tmp_path: Path, point: str) -> None:
    run = filled(tmp_path)
    store = Store(tmp_path, identity=load_or_create(tmp_path), checkpoint=CrashAt(point))

    def pruned() -> None:
        store.prune(run, most=5, by="operator")
        store.compact()

    with pytest.raises(Crash):
        pruned()
    store._db.connection.close()  # without folding the WAL, as a kill does
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        assert store.read.ledger.verify().problems == ()
        store.prune(run, most=5, by="operator")
        store.compact()
        assert store.read.pruned_until(run) in {5, 10}
    with open_reader(tmp_path) as reader:
        assert reader.ledger.verify().problems == ()


def test_a_start_after_compacting_trusts_the_files(tmp_path: Path) -> None:
    run = filled(tmp_path, devices=60)
    size = (tmp_path / DATABASE).stat().st_size
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        store.prune(run, most=50, by="operator")
        store.compact()
    assert (tmp_path / DATABASE).stat().st_size <= 0.8 * size
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        assert store._db.untouched


def test_a_backup_beside_rounds_and_pruning_is_whole(tmp_path: Path) -> None:
    run = filled(tmp_path / "data")
    made: list[BaseException | None] = []

    def copies() -> None:
        for number in range(5):
            back_up(tmp_path / "data", tmp_path / f"copy-{number}")
            made.append(None)

    thread = threading.Thread(target=copies)
    with Store(tmp_path / "data", identity=load_or_create(tmp_path / "data")) as store:
        thread.start()
        number = ROUNDS
        while thread.is_alive():
            number += 1
            play(store, run, small_plan(small_view(number, [100] * 4)), {0})
            store.prune(run, most=1, by="coordinator")
        thread.join()
    assert len(made) == 5
    for copy in range(5):
        with open_reader(tmp_path / f"copy-{copy}") as reader:
            assert reader.ledger.verify().problems == ()


def test_the_wal_stays_small_in_a_long_run(tmp_path: Path) -> None:
    wal, most = tmp_path / f"{DATABASE}-wal", 0
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        run = begun(store, total_micro=None, clients=60).run_id
        for number in range(1, 101):
            store.reserve(run, small_plan(small_view(number, [1] * 60)), policy="random")
            store.save_metrics(run, number, "d" * 64, {"accuracy": 0.5})
            most = max(most, wal.stat().st_size)
            assert number % 5 or store.void_open_rounds(run, "test")
    assert most <= 6e6


def test_what_pruning_frees_is_foretold(tmp_path: Path) -> None:
    run = filled(tmp_path, devices=60)
    with open_reader(tmp_path) as reader:
        pieces = [reader.prunable(run, keep_rounds=20)]
        said = reader.foretold(pieces)
        assert reader.pruned_until(run) == 0
    before = bytes_held(tmp_path)
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        store.prune(run, keep_rounds=20, most=50, by="operator")
        store.compact()
    freed = before - bytes_held(tmp_path)
    assert freed > 0.2 * before
    assert said == pytest.approx(freed, rel=0.03)


def opened(folder: Path) -> Store:
    return Store(folder, identity=load_or_create(folder))


def books(folder: Path) -> list[str]:
    return sorted(path.name[33:-6].lstrip("0") for path in folder.glob("archive/*.books"))


FIVE_ROUNDS = 15_000
"""More than five rounds of four devices take, and less than ten."""


@pytest.mark.parametrize("bound", ["_MOST_BYTES", "_MANY_ROWS"])
def test_more_rounds_than_one_file_may_hold_are_closed_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    run = filled(tmp_path)
    if bound == "_MOST_BYTES":
        monkeypatch.setattr(segments, bound, FIVE_ROUNDS)
        monkeypatch.setattr(segments, "MOST_BYTES_BOUND", FIVE_ROUNDS)
    else:
        monkeypatch.setattr(pruning, bound, 5 * 4 * 6)
    with open_reader(tmp_path) as reader:
        outcomes = reader.outcomes(run)
        pieces = [reader.prunable(run)]
        assert reader.foretold(pieces)
    with opened(tmp_path) as store:
        assert store.prune(run, most=10, by="operator").last == 10
        assert store.read.pruned_until(run) == 10
    assert books(tmp_path) == ["1", "6"]
    with open_reader(tmp_path) as reader:
        assert reader.ledger.verify(full=True).problems == ()
        assert len(list(reader.ledger.export("json"))) == reader.ledger.verify().entries
        with reader.whole(run) as whole:
            assert whole.outcomes(run) == outcomes


def test_rounds_that_no_file_can_have_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = filled(tmp_path)
    with monkeypatch.context() as small, opened(tmp_path) as store:
        small.setattr(segments, "_MOST_BYTES", 500)
        with pytest.raises(OversizedBooksError, match=r"rounds 1 to 1 of run .* nothing is lost"):
            store.prune(run, most=10, by="operator")
        assert store.read.foretold([store.read.prunable(run)]) >= 0
        assert (store.read.pruned_until(run), books(tmp_path)) == (0, [])
        assert store.read.ledger.verify().problems == ()
    with opened(tmp_path) as store:
        assert store.prune(run, most=10, by="operator").last == 10


def test_a_file_that_former_releases_wrote_too_large_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = filled(tmp_path)
    with opened(tmp_path) as store:
        store.prune(run, most=10, by="operator")
    monkeypatch.setattr(segments, "_MOST_BYTES", 500)
    with open_reader(tmp_path) as reader:
        assert reader.ledger.verify(full=True).problems == ()
        assert len(list(reader.ledger.export("csv"))) > 200
        with reader.whole(run) as whole:
            assert len(whole.rounds(run)) == ROUNDS


@pytest.mark.parametrize("harm", ["nothing", "cut off", "another file"])
def test_no_row_is_dropped_for_a_file_that_is_not_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    run = filled(tmp_path)
    other = segments.encode(segments.Segment(run_id=run, first=1, last=5, tables={}))

    def lying(path: Path, data: bytes) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes({"nothing": b"", "cut off": data[:-9], "another file": other}[harm])

    with opened(tmp_path) as store, monkeypatch.context() as disk:
        disk.setattr(pruning, "write_private", lying)
        with pytest.raises(StoreFailedError, match="is not what was written"):
            store.prune(run, most=5, by="operator")
        assert len(store.read.rounds(run)) == ROUNDS
    with opened(tmp_path) as store:
        assert books(tmp_path) == []
        assert store.read.ledger.verify().problems == ()
        assert store.prune(run, most=5, by="operator").last == 5


def test_the_command_prunes_and_names_what_was_freed(tmp_path: Path) -> None:
    run = filled(tmp_path, devices=60)
    told = ("--data-dir", str(tmp_path))
    said = fedagent("prune", "--keep-rounds", "22", "--dry-run", *told)
    assert said.returncode == 0, said.stderr
    assert f"run {run[:8]}: rounds 1 to 8 would be pruned" in said.stdout
    with open_reader(tmp_path) as reader:
        assert reader.pruned_until(run) == 0
    said = fedagent("prune", "--keep-rounds", "22", "--json", *told)
    assert f'"{run}":{{"first":1,"last":8}}' in said.stdout.replace(" ", "")
    assert fedagent("ledger", "verify", *told).returncode == 0
    assert "nothing to prune" in fedagent("prune", "--keep-days", "1", *told).stdout
    why = fedagent("why", "agent-1", "--round", "3", *told)
    assert why.returncode == 43
    assert "was pruned, with all before round 9" in why.stderr
    assert fedagent("prune", *told).returncode == 2


def test_a_forged_piece_needs_the_key(tmp_path: Path) -> None:
    filled(tmp_path)
    recompute(
        tmp_path,
        "INSERT INTO pruned SELECT run_id, 1, 9, 'operator', 1 FROM runs",
        "UPDATE rounds SET view = x'', selection = x'', controls = x'' WHERE round <= 9",
    )
    with open_reader(tmp_path) as reader:
        assert reader.ledger.verify().problems
