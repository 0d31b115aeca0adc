"""A start trusts files that are bit for bit what the last coordinator left, and no others."""

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.books import audit, blocks
from fedagent_coordinator.books.blocks import BLOCKS
from fedagent_coordinator.books.connection import DATABASE
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import HistoryLostError, LedgerBrokenError, StoreError
from fedagent_node.data_dir import load_or_create
from tests.fakes.stored_runs import (
    begun,
    files_of,
    lay_down,
    play,
    recompute,
    small_plan,
    small_view,
)

ROUNDS = 12


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """What a killed coordinator left: settled rounds, and one that is open in the WAL."""
    folder = tmp_path / "origin"
    with Store(folder, identity=load_or_create(folder)) as store:
        run = begun(store).run_id
        for number in range(1, ROUNDS):
            play(store, run, small_plan(small_view(number, [100, 200])), {0})
        store.reserve(run, small_plan(small_view(ROUNDS, [100])), policy="random")
        return files_of(folder)


def _verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    walked: list[int] = []
    verify = audit.Ledger.verify

    def counted(self: audit.Ledger) -> audit.LedgerReport:
        walked.append(1)
        return verify(self)

    monkeypatch.setattr(audit.Ledger, "verify", counted)
    return walked


def _open(folder: Path) -> Store:
    return Store(folder, identity=load_or_create(folder))


def test_what_was_left_is_not_walked_again(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = _verified(monkeypatch)
    for kind in ("killed", "closed"):
        folder = tmp_path / kind
        lay_down(folder, files)
        for _ in range(3):
            store = _open(folder)
            play_on = store.read.run().run_id
            store.void_open_rounds(play_on, "restart")
            left = files_of(folder)
            store.close()
            if kind == "killed":
                folder = lay_down(tmp_path / f"{folder.name}-again", left)
    assert not walked


@pytest.mark.parametrize("missing", [BLOCKS, "identity.json"])
def test_without_the_short_cut_everything_is_verified(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Another key has signed the digests: they are no reason to trust."""
    walked = _verified(monkeypatch)
    del files[missing]
    folder = lay_down(tmp_path / "copy", files)
    if missing == BLOCKS:
        _open(folder).close()
        _open(folder).close()
    else:
        with pytest.raises(LedgerBrokenError, match="not signed by this coordinator"):
            _open(folder)
    assert len(walked) == 1


def test_no_flipped_bit_changes_a_row_in_silence(tmp_path: Path, files: dict[str, bytes]) -> None:
    """Where the free space of a page was hit, everything was verified and is what it was."""
    chance, refused = random.Random(5), 0
    whole = _rows(lay_down(tmp_path / "whole", files))
    written = [at for at, byte in enumerate(files[DATABASE]) if byte]
    for number in range(40):
        damaged = bytearray(files[DATABASE])
        damaged[chance.choice(written)] ^= 1 << chance.randrange(8)
        folder = lay_down(tmp_path / f"flip-{number}", {**files, DATABASE: bytes(damaged)})
        try:
            _open(folder).close()
        except (HistoryLostError, LedgerBrokenError) as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert _rows(folder) == whole
    assert refused >= 25


def test_an_edit_that_stays_in_the_wal_is_found(tmp_path: Path, files: dict[str, bytes]) -> None:
    folder = lay_down(tmp_path / "copy", files)
    with closing(sqlite3.connect(folder / DATABASE)) as sql:
        sql.execute("PRAGMA wal_autocheckpoint = 0")
        sql.execute("UPDATE clients SET agent_id = 'somebody' WHERE idx = 0")
        sql.commit()
        left = files_of(folder)
    with pytest.raises(LedgerBrokenError, match="agent-0"):
        _open(lay_down(tmp_path / "edited", left))


def test_a_chain_that_is_computed_anew_is_not_signed(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    folder = lay_down(tmp_path / "copy", files)
    recompute(folder, "UPDATE outcomes SET num_samples = 999 WHERE round = 1")
    with pytest.raises(LedgerBrokenError, match="not signed by this coordinator"):
        _open(folder)


def _rows(folder: Path) -> list[str]:
    copy = lay_down(folder.with_name(f"{folder.name}-rows"), files_of(folder))
    with closing(sqlite3.connect(copy / DATABASE)) as sql:
        return [line for line in sql.iterdump() if " meta" not in line and '"meta"' not in line]


def test_a_start_hashes_a_part_of_a_large_file_that_nobody_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_AT_START", 2)
    with _open(tmp_path) as store:
        run = begun(store, total_micro=None, clients=60).run_id
        for number in range(1, 2 * ROUNDS):
            play(store, run, small_plan(small_view(number, [1] * 60)), set(range(60)))
    count = -(-(tmp_path / DATABASE).stat().st_size // blocks.BLOCK_BYTES)
    assert count > 4
    hashed: list[list[int]] = []
    plain = blocks.BlockDigests._hash

    def watched(self: blocks.BlockDigests, wanted: Sequence[int]) -> bytes:
        hashed.append(list(wanted))
        return plain(self, wanted)

    monkeypatch.setattr(blocks.BlockDigests, "_hash", watched)
    for begin in (0, 2):
        hashed.clear()
        with _open(tmp_path) as store:
            assert store._db.untouched
        assert hashed[0] == [begin, begin + 1]
    os.utime(tmp_path / DATABASE)
    hashed.clear()
    with _open(tmp_path) as store:
        assert store._db.untouched
    assert hashed[0] == list(range(count))
    data = bytearray((tmp_path / DATABASE).read_bytes())
    data[-100] ^= 1
    (tmp_path / DATABASE).write_bytes(data)
    with pytest.raises(StoreError):
        _open(tmp_path)


TAKE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # what the last one out takes
"""


def test_hashing_gives_up_no_lock_of_sqlite(tmp_path: Path) -> None:
    """Closing any file of a database drops this process's locks: another may take its WAL away."""
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        run = begun(store).run_id
        play(store, run, small_plan(small_view(1, [100, 200])), {0})
        path = str(tmp_path / DATABASE)
        took = subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, check=False)
        assert b"BlockingIOError" in took.stderr
