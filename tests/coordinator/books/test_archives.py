"""Closed books: a store that closes rounds is the same to everybody as one that never does."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.backup import back_up, restore
from fedagent_coordinator.books import archives, segments
from fedagent_coordinator.books.heads import head_bytes
from fedagent_coordinator.books.mark import MARK, HighWaterMark, MarkFile
from fedagent_coordinator.books.reader import Reader, open_reader
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import Proof
from fedagent_coordinator.errors import (
    ArchiveError,
    HistoryLostError,
    LedgerBrokenError,
    LedgerError,
    RecordError,
)
from fedagent_node.data_dir import load_or_create
from fedagent_protocol.messages import LedgerHead
from tests.fakes.stored_runs import (
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
from tests.typed import fedagent

ROUNDS, CLOSED = 40, 20
_GONE = {"opened_ms", "closed_ms", "iterations", "notes"}


def opened(folder: Path) -> Store:
    return Store(folder, identity=load_or_create(folder))


def played(store: Store, run: str, number: int, paid: set[int]) -> None:
    plan = rented_plan(number) if number % 3 == 0 else small_plan(small_view(number, [10, 20, 30]))
    store.reserve(run, plan, policy="random")
    result = small_result(plan, paid, rent=250 * (number % 2) if paid and number % 3 == 0 else 0)
    proof = Proof(claim=b"%d" % number, public=bytes(32), signature=bytes(64))
    assert store.settle(run, structs.replace(result, proofs=dict.fromkeys(paid, proof)))
    store.save_model(run, number, f"{number:064d}", 9)
    store.save_metrics(run, number, f"{number:064d}", {"accuracy": 0.5})
    if number % 7 == 0:
        once = {2: 0.75} if number == 7 else {}
        store.save_evaluation(run, opinions(number, {0: 0.25, 1: 0.5} | once))
    store.snapshot(run, number, "random", {"n": np.array([number])})


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rounds, the first twenty closed in two files."""
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


def files(folder: Path) -> list[Path]:
    return sorted((folder / archives.ARCHIVE).iterdir())


def money(reader: Reader) -> list[tuple[object, ...]]:
    entries = [json.loads(line) for line in reader.ledger.export("json")]
    told = ("round", "kind", "source", "target", "amount_micro", "payee", "client", "edge")
    return [tuple(one[name] for name in told) for one in entries if one["source"] != "closed"]


def answers(reader: Reader, run: str) -> Iterator[object]:
    yield reader.balance(run)
    yield stands(reader, run)
    yield reader.devices(run)
    yield reader.rents(run)
    yield reader.updates_used(run)
    yield reader.last_round(run)
    yield reader.models.best(run)
    yield reader.models.metrics(run)
    yield reader.evaluations.rows(run)
    yield reader.evaluations.last_opinions(run)
    yield reader.free_before(run, reader.last_round(run))
    yield money(reader)
    for full in (False, True):
        report = reader.ledger.verify(full=full)
        yield report.problems, list(report.runs.values())
    with reader.whole(run) as whole:
        for found in (whole.rounds(run), whole.outcomes(run), whole.edge_results(run)):
            yield [timeless(row) for row in found]
        yield whole.balance(run), stands(whole, run), whole.devices(run)
        yield whole.evaluations.answered(run)
        yield [entry.amount_micro for entry in whole.ledger.show(run, limit=-1)]
        proofs = [whole.ledger.proof(run, number, "agent-0") for number in range(1, 13)]
        yield [one and (one.proof, one.entry.key[33:]) for one in proofs]


def stands(reader: Reader, run: str) -> tuple[int, int, int, str]:
    found = reader.progress(run)
    return found.next_round, found.rounds_done, found.spent_micro, found.model


def timeless(row: object) -> dict[str, object]:
    """Return a row without what goes with a plan, and what the wall clock says."""
    names = [name for name in row.__slots__ if name not in _GONE]  # type: ignore[attr-defined] # a dataclass with slots
    return {name: getattr(row, name) for name in names}


@settings(max_examples=8, deadline=None)
@given(
    paid=st.lists(st.sets(st.integers(0, 1)), min_size=12, max_size=30),
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
            assert archives.closed_until(closes._db.connection, runs[1]) >= 1
            for store, run in zip((plain, closes), runs, strict=True):
                again = small_plan(small_view(1, [10, 20, 30]))
                assert not store.settle(run, small_result(again, {0}))
                with pytest.raises(LedgerError, match="does not come after the last"):
                    store.reserve(run, again, policy="random")
                assert not store.save_evaluation(run, opinions(7, {0: 1.0}))
        with open_reader(Path(one)) as was, open_reader(Path(other)) as now:
            for expected, found in zip(answers(was, runs[0]), answers(now, runs[1]), strict=True):
                assert found == expected


@pytest.mark.parametrize("full", [False, True])
def test_one_flipped_bit_of_a_file_is_noticed(folder: Path, full: bool) -> None:
    path = files(folder)[1]
    data = path.read_bytes()
    chance = np.random.default_rng(0)
    with open_reader(folder) as reader:
        assert reader.ledger.verify(full=full).problems == ()
        for at in [0, len(data) - 1, *chance.integers(len(data), size=10).tolist()]:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            found = reader.ledger.verify(full=full).problems
            assert f"archive/{path.name}, the ledger of rounds 11 to 20, has changed" in found[0]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE closed SET by = 'nobody' WHERE first = 11",
        "UPDATE closed SET size_bytes = 1 WHERE first = 11",
        "UPDATE closed SET round = 19 WHERE first = 11",
        "UPDATE closed SET digest = zeroblob(32) WHERE first = 11",
        "UPDATE closed SET summary = x'80' WHERE first = 11",
        "UPDATE closed SET summary = (SELECT summary FROM closed WHERE first = 1)",
        "DELETE FROM closed",
        "DELETE FROM closed WHERE first = 11",
        "DELETE FROM entries WHERE source = 'closed'",
        "UPDATE metrics SET value = 0.6 WHERE round = 12",
        "UPDATE models SET digest = 'other' WHERE round = 12",
        "DELETE FROM models WHERE round = 12",
        "UPDATE opinions SET score = 1 WHERE round = 14 AND client = 1",
        "INSERT INTO metrics SELECT run_id, round, digest, 'loss', 1 FROM models WHERE round = 3",
    ],
)
def test_what_is_left_of_closed_rounds_is_bound(folder: Path, change: str) -> None:
    assert problems(folder, change)


def test_a_full_audit_finds_what_somebody_with_the_key_has_forged(folder: Path) -> None:
    path = files(folder)[0]
    segment = segments.decode(path.read_bytes())
    outcomes = segment.tables["outcomes"]
    outcomes.columns[outcomes.names.index("tau_s")][0] = 9.75
    data = segments.encode(segment)
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    change = f"UPDATE closed SET digest = x'{digest}', size_bytes = {len(data)} WHERE first = 1"
    recompute(folder, change, key=load_or_create(folder))
    with open_reader(folder) as reader:
        assert reader.ledger.verify().problems == ()
        assert reader.ledger.verify(full=True).problems == ("round 1: its outcomes have changed",)


def test_a_start_misses_a_file_and_removes_one_that_nobody_knows(folder: Path) -> None:
    known = files(folder)
    stray = known[0].with_name("0" * 32 + "-000000001.books")
    stray.write_bytes(b"the rest of a crash")
    opened(folder).close()
    assert files(folder) == known
    known[0].unlink()
    with pytest.raises(LedgerBrokenError, match=r"rounds 1 to 10, is missing.*restore"):
        opened(folder)
    with open_reader(folder) as reader, pytest.raises(ArchiveError, match="is missing"):
        list(reader.ledger.export("csv"))


def test_a_mark_and_a_witness_may_name_an_entry_in_closed_books(folder: Path) -> None:
    me = load_or_create(folder)
    with open_reader(folder) as reader:
        entries = {entry["seq"]: entry for entry in map(json.loads, reader.ledger.export("json"))}
        seq = min(entry["seq"] for entry in entries.values() if entry["round"] == 12)
        assert archives.hash_at(reader._db, folder, seq + 1) == bytes.fromhex(
            entries[seq + 1]["hash"]
        )

    def head(told: str) -> LedgerHead:
        hash_ = bytes.fromhex(told)
        signed = me.sign(head_bytes(seq, hash_))
        return LedgerHead(coordinator=me.id, seq=seq, hash=hash_, signature=signed)

    with opened(folder) as store:
        store.check_witness("edge-0", head(entries[seq]["hash"]))
        assert store.read.ledger.verify(head(entries[seq]["hash"])).problems == ()
        with pytest.raises(HistoryLostError, match="here it is another one"):
            store.check_witness("edge-0", head("ab" * 32))
        assert store.read.ledger.verify(head("ab" * 32)).problems


def test_an_unreadable_file_neither_ends_a_coordinator_nor_speaks_against_a_witness(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    me, path = load_or_create(folder), files(folder)[1]
    with open_reader(folder) as reader:
        entries = [json.loads(line) for line in reader.ledger.export("json")]
    told = next(entry for entry in entries if entry["round"] == 12)
    hash_ = bytes.fromhex(told["hash"])
    signed = me.sign(head_bytes(told["seq"], hash_))
    head = LedgerHead(coordinator=me.id, seq=told["seq"], hash=hash_, signature=signed)
    data = path.read_bytes()
    with opened(folder) as store:
        path.write_bytes(bytes(len(data)))
        store.check_witness("edge-0", head)
        assert f"edge-0 is a witness of cannot be compared: archive/{path.name}" in caplog.text
        path.write_bytes(data)
        store.check_witness("edge-0", head)
    path.unlink()
    with pytest.raises(LedgerBrokenError):
        opened(folder)


def test_a_mark_in_books_that_cannot_be_read_is_lost_history(folder: Path) -> None:
    with open_reader(folder) as reader:
        entries = [json.loads(line) for line in reader.ledger.export("json")]
    told = next(entry for entry in entries if entry["round"] == 12)
    (folder / MARK).unlink()
    MarkFile(folder / MARK, HighWaterMark(commits=1, seq=told["seq"], hash=told["hash"])).close()
    files(folder)[1].write_bytes(b"")
    with pytest.raises(HistoryLostError, match="cannot be read: archive/"):
        opened(folder)


def test_a_backup_has_the_closed_books(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "backup")
    shutil.rmtree(folder)
    restore(tmp_path / "backup", folder)
    with open_reader(folder) as reader:
        assert reader.ledger.verify(full=True).problems == ()
    files(tmp_path / "backup")[0].unlink()
    with pytest.raises(LedgerBrokenError, match="is missing"):
        restore(tmp_path / "backup", tmp_path / "other")


def test_commands_read_closed_rounds(folder: Path) -> None:
    told = ("--data-dir", str(folder))
    assert "balanced" in fedagent("ledger", "verify", "--full", *told).stdout
    rounds = json.loads(fedagent("status", "--rounds", "35", "--json", *told).stdout)["rounds"]
    assert [row["round"] for row in rounds] == list(range(6, 41))
    entries = json.loads(fedagent("ledger", "show", "--last", "0", "--json", *told).stdout)
    assert {entry["round"] for entry in entries["entries"]} >= set(range(1, 41))
    export = ("export", "--ledger", str(folder / "l.csv"), *told)
    assert fedagent(*export).returncode == 0
    assert len((folder / "l.csv").read_text().splitlines()) > len(entries["entries"])
    files(folder)[0].unlink()
    said = fedagent(*export)
    assert said.returncode
    assert "is missing; restore that file from a copy of the data directory" in said.stderr


@given(data=st.binary(max_size=200), at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_segment_are_refused(books: Path, data: bytes, at: int, bit: int) -> None:
    whole = files(books)[0].read_bytes()
    at %= len(whole)
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    for wrong in (data, segments._MAGIC + data, whole[:at], flipped, whole + b"\0"):
        with pytest.raises(RecordError):
            segments.decode(wrong)


def test_a_segment_inflates_to_no_more_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = segments.table_of(["a"], [("x" * 1000,)])
    bomb = segments.encode(segments.Segment(run_id="r", first=1, last=1, tables={"t": table}))
    assert segments.decode(bomb).tables["t"] == table
    monkeypatch.setattr(segments, "_MOST_BYTES", 500)
    with pytest.raises(RecordError):
        segments.decode(bomb)


def test_columns_that_a_later_release_adds_go_with_the_others(folder: Path) -> None:
    tampered(folder, "ALTER TABLE outcomes ADD COLUMN later TEXT DEFAULT 'new'")
    with open_reader(folder) as reader:
        run = reader.run().run_id
        segment = archives.gather(reader._db, run, 21, 22)
        table = segment.tables["outcomes"]
        assert set(table.columns[table.names.index("later")]) == {"new"}
        with reader.whole(run) as whole:
            assert len(whole.outcomes(run)) == len(whole.rounds(run)) * 2 + 27


def test_opinions_go_with_their_rounds_but_the_newest_of_each_client(folder: Path) -> None:
    with open_reader(folder) as reader:
        run = reader.run().run_id
        here = [(one.round, one.client) for one in reader.evaluations.opinions(run)]
        assert here == [(7, 2), *((n, client) for n in (21, 28, 35) for client in (0, 1))]
        assert [one.round for one in reader.evaluations.rows(run)] == [7, 14, 21, 28, 35]
        with reader.whole(run) as whole:
            assert len(whole.evaluations.opinions(run)) == 11
    said = fedagent("opinions", "--round", "14", "--data-dir", str(folder))
    assert "agent-1" in said.stdout


def evaluated(store: Store) -> str:
    """Fifteen rounds; clients volunteer after the second and the fourth, and no more."""
    run = begun(store, total_micro=100_000).run_id
    for number in range(1, 16):
        play(store, run, small_plan(small_view(number, [10, 20, 30])), {0})
        store.snapshot(run, number, "random", {"n": np.array([number])})
        if number in {2, 4}:
            store.save_evaluation(run, volunteers(number, [0, 1]))
    return run


def test_volunteers_go_with_their_rounds_but_the_newest(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        run = evaluated(store)
        store.prune(run, keep_rounds=10, most=5, by="test")
        assert [one.round for one in store.read.evaluations.volunteers(run)] == [4, 4]
        with store.read.whole(run) as whole:
            assert [one.round for one in whole.evaluations.volunteers(run)] == [2, 2, 4, 4]
        assert store.read.ledger.verify(full=True).problems == ()


def test_books_of_before_schema_12_left_opinions_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = tuple(one for one in archives.TABLES if one not in {"opinions", "volunteers"})
    with opened(tmp_path) as store:
        run = evaluated(store)
        with monkeypatch.context() as old:
            old.setattr(archives, "TABLES", former)
            store.prune(run, keep_rounds=10, most=5, by="test")
        assert len(store.read.evaluations.volunteers(run)) == 4
        with store.read.whole(run) as whole:
            assert len(whole.evaluations.volunteers(run)) == 4
        assert store.read.ledger.verify(full=True).problems == ()
