"""What a device keeps for its owner: bounded, durable, refused in one line when it is damaged."""

import sqlite3
from pathlib import Path

import pytest

from fedagent_agent.peers import store as peer_store
from fedagent_agent.peers.core.records import ArmStats, SlotRecord, StoreSlot
from fedagent_agent.peers.store import FILE, PeerStore, PeerStoreError, read_slots

RUN = "ab" * 16


def kept(
    slot: int, *, run: str = RUN, incarnation: int = 1, opinion: float | None = 0.5
) -> StoreSlot:
    record = SlotRecord(run=run, round=slot - 2, slot=slot, opinion=opinion, trained=False)
    return StoreSlot(incarnation, ArmStats(0.25, slot, slot, 3, slot), record)


def test_every_start_and_every_wiring_has_a_larger_incarnation(tmp_path: Path) -> None:
    store = PeerStore(tmp_path)
    assert store.incarnation == 1
    store.keep(kept(2, incarnation=7))
    store.close()
    again = PeerStore(tmp_path)
    assert again.incarnation == 8
    assert again.arms() == {RUN: ArmStats(0.25, 2, 2, 3, 2)}
    again.close()


def test_starts_are_counted_on_from_the_clock_where_the_file_was_lost(tmp_path: Path) -> None:
    def start(now: float) -> int:
        store = PeerStore(tmp_path, clock=lambda: now)
        store.close()
        return store.epoch

    assert [start(1000.5), start(5.0), start(9000.0)] == [1000, 1001, 1002]
    (tmp_path / FILE).unlink()
    assert start(2000.0) == 2000
    (tmp_path / FILE).unlink()
    assert start(-5.0) == 1, "a device without a clock"


def test_the_newest_slots_and_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_store, "KEPT_SLOTS", 5)
    monkeypatch.setattr(peer_store, "KEPT_RUNS", 2)
    store = PeerStore(tmp_path)
    runs = [f"{n:032x}" for n in range(4)]
    for slot in range(2, 6):
        for run in runs:
            store.keep(kept(slot, run=run))
    assert list(store.arms()) == runs[-2:]
    assert [(s.run, s.slot) for s in read_slots(tmp_path)] == [
        (runs[3], 4),
        *((run, 5) for run in runs),
    ]
    assert [s.slot for s in read_slots(tmp_path, run=runs[3])] == [4, 5]
    assert [s.run for s in read_slots(tmp_path, last=1)] == [runs[3]]
    store.close()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(PeerStoreError, match="unable to open"):
        read_slots(tmp_path)
    (tmp_path / FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(PeerStoreError, match="free space, or move the file away"):
        PeerStore(tmp_path)
    (tmp_path / FILE).unlink()
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(PeerStoreError, match="another version"):
        PeerStore(tmp_path)
    held = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not any(str(tmp_path) in path for path in held), "nothing stays open"


def test_a_disk_that_refuses_leaves_what_was_kept(tmp_path: Path) -> None:
    store = PeerStore(tmp_path)
    store.keep(kept(2))
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(PeerStoreError):
        store.keep(kept(3))
    store._db.execute("PRAGMA query_only = OFF")
    assert [slot.slot for slot in read_slots(tmp_path)] == [2]
    store.close()
