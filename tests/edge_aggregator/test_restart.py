"""An edge killed at every checkpoint: the aggregate is the one of an edge that lived."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from msgspec import structs

from fedagent_edge import spool
from fedagent_edge.core import receipts
from fedagent_edge.core.effects import LAN, Memory, Record
from fedagent_edge.spool import Journal, Place
from fedagent_edge.store import EdgeStore
from fedagent_node.blobs import BlobStore
from fedagent_node.effects import Received
from fedagent_node.errors import DiskError
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors

from .harness import Field, Killed, expected_mean, field_of

WEIGHTS = {"a0": 10.0, "a1": 20.0, "a2": 30.0}


def _field(directory: Path, size: int) -> Field:
    field = field_of(directory, 3, size=size)
    for index, (name, weight) in enumerate(WEIGHTS.items()):
        agent = field.agents[name]
        agent.samples = int(weight)
        agent.chunk_bytes = 32 * 1024
        # Apart in time, so that the sum has one order.
        agent.work_s = 0.3 + 0.4 * index
    return field


@pytest.mark.parametrize("size", [64, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(("point", "durable"), [("edge.complete", False), ("edge.spooled", True)])
def test_a_restart_counts_who_declined_too_late_only_if_its_update_was_durable(
    tmp_path: Path, point: str, durable: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "KEEP_S", 0.0)
    field = _field(tmp_path, size)
    agent = field.agents["a1"]
    agent.work_s, agent.chunk_bytes = 100.0, 512 * 1024
    field.agents["a2"].work_s = 2.2  # else the round ends before anything is spooled
    field.order(deadline_ms=3000, max_wait_ms=4000)
    field.run_for(2.0)
    field.kill_at = point
    offer = agent.make_offer(agent.orders[-1])
    agent.silent = True
    decline = m.Decline(run=offer.run, round=1, reason=m.DeclineReason.LOAD)
    field.job_delay_s = 0.02 if size > 64 else 0.0
    events = [Received("a1", message, LAN, field.now) for message in (offer, decline)]
    field._try(lambda: field.edge.receive(*events))
    report = field.run_until_report()
    assert field.kills == 1
    outcome = report.outcomes[1]
    assert (outcome.used, outcome.valid) == (durable, durable)
    assert outcome.status == ("arrived" if durable else "missed")
    weights = {name: WEIGHTS[name] for name in ("a0", "a1", "a2") if durable or name != "a1"}
    assert report.weight == sum(weights.values())


def test_after_a_reboot_no_time_is_left(tmp_path: Path) -> None:
    field = _field(tmp_path, 64)
    field.agents["a2"].work_s = 100.0
    field.order(deadline_ms=50_000, max_wait_ms=80_000, min_updates=2)
    field.run_for(2.0)
    field.boot, field.now = "boot-2", 3.0
    field._queue.clear()
    field.restart()
    report = field.run_until_report(max_s=2.0)
    assert report.used == 2
    assert field.core.memory.model == report.model


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_a_torn_journal_forgets_only_what_was_not_receipted(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    field, read = _field(tmp_path, 64), os.pread
    # Linux gives 2 GiB at most at once: it may be longer.
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 1000), at))
    field.order(deadline_ms=30_000, max_wait_ms=60_000, min_updates=3)
    while len([a for a in field.agents.values() if a.receipts]) < 2:
        field.run_for(0.02)
    journal = tmp_path / "spool" / "journal"
    whole = journal.read_bytes()
    # What a kill in the midst of a record would leave.
    journal.write_bytes(whole + whole[-cut:])
    field.restart()
    assert f"its last {cut} bytes are not whole" in caplog.text
    assert field.run_until_report().used == 3


def _remove_models(field: Field) -> None:
    for path in (field.directory / "models").iterdir():
        path.unlink()


def _damage_models(field: Field) -> None:
    for path in (field.directory / "models").iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


def _fail_to_read_a_model(field: Field) -> None:
    models = cast("EdgeStore", field.edge.store)._models
    read = models.get

    def get(digest: str) -> bytes:
        models.get = read  # type: ignore[method-assign]  # it fails once
        raise OSError(5, "Input/output error", digest)

    models.get = get  # type: ignore[method-assign]  # a disk that fails


def test_a_disk_that_fails_once_at_start_costs_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = _field(tmp_path, 100_000)
    field.order(deadline_ms=30_000, max_wait_ms=60_000, min_updates=3)
    while len([a for a in field.agents.values() if a.receipts]) < 2:
        field.run_for(0.02)

    def fails(_store: BlobStore, _digest: str) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "get", fails)
        with pytest.raises(DiskError, match="Input/output error"):
            field.open()
    field.restart()
    assert field.run_until_report().used == 3


def test_a_small_model_that_is_damaged_in_the_journal_is_fetched_again(tmp_path: Path) -> None:
    field = _field(tmp_path, 64)
    journal = tmp_path / "spool" / "journal"
    content = bytearray(journal.read_bytes())
    content[content.index(field.model) + len(field.model) - 1] ^= 1
    journal.write_bytes(content)
    field.restart()
    assert field.core.memory.model == ""
    assert field.core.counters["model_lost"] == 1
    field.run_for(1.0)
    field.give_model()
    field.order()
    assert field.run_until_report().used == 3


def test_a_long_journal_begins_again_with_what_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "FOLD_BYTES", 4000)
    field = _field(tmp_path, 64)
    for number in range(1, 6):
        field.order(number)
        report = field.run_until_report(number)
        assert report.used == 3
        assert (tmp_path / "spool" / "journal").stat().st_size < 8000
    # Nor does it grow by the models of rounds that are ordered elsewhere.
    for number in range(1, 20):
        field.model = encode_tensors({"weight": np.full(256, number, dtype=np.float32)})
        field.digest = digest_of(field.model)
        field.give_model()
        assert (tmp_path / "spool" / "journal").stat().st_size < 8000
    before = field.core.memory
    field.open()
    assert structs.replace(field.core.memory, report=None) == before
    assert field.model_bytes(field.digest)


def test_who_was_refused_is_so_after_a_restart_too(tmp_path: Path) -> None:
    field = _field(tmp_path, 64)
    field.agents["a0"].overrides = {"task": "b" * 64}
    field.agents["a1"].decline = m.DeclineReason.SCHEMA
    field.order(min_updates=3)
    field.run_for(0.6)
    field.agents["a0"].decline = field.agents["a1"].decline = m.DeclineReason.BUSY
    field.restart()
    outcomes = field.run_until_report().outcomes
    assert [one.reason for one in outcomes] == ["wrong_task", "schema", ""]


@pytest.mark.parametrize("spoil", [_remove_models, _damage_models, _fail_to_read_a_model])
def test_a_base_model_lost_in_mid_round_fails_it_once_and_is_fetched_again(
    tmp_path: Path, spoil: Callable[[Field], None]
) -> None:
    field = _field(tmp_path, 100_000)
    field.job_delay_s = 0.02
    for agent in field.agents.values():
        agent.work_s = 0.3
    field.order(deadline_ms=30_000, max_wait_ms=60_000)
    field.run_for(0.25)
    spoil(field)
    report = field.run_until_report()
    assert report.failed == "the edge's model is lost"
    assert (report.used, report.weight, report.model) == (0, 0.0, "")
    assert [(o.status, o.valid) for o in report.outcomes] == [("arrived", True)] * 3
    assert [agent.closed for agent in field.agents.values()] == [[]] * 3
    assert field.core.counters["model_lost"] == 1
    assert len([note for note in field.notes if "model" in note.text]) == 1
    assert len(field.reports) == 1
    field.give_model()
    field.order(2)
    assert field.run_until_report(2).used == 3


def _cut_models(field: Field) -> None:
    for path in (field.directory / "models").iterdir():
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [_remove_models, _damage_models, _cut_models])
def test_a_damaged_model_reaches_nobody_is_said_in_one_line_and_fetched_again(
    tmp_path: Path, spoil: Callable[[Field], None]
) -> None:
    """Every effect of the edge raises in this harness: an error is not even logged."""
    field = _field(tmp_path, 100_000)
    field.chunk_bytes = 64 * 1024
    field.restart()
    field.run_for(1.0)
    field.notes.clear()
    spoil(field)
    field.order(deadline_ms=30_000, max_wait_ms=60_000)
    report = field.run_until_report()
    assert report.failed == "the edge's model is lost"
    assert not any(agent.models for agent in field.agents.values())
    assert len(field.notes) == 1
    assert "the edge's model is lost" in field.notes[0].text
    assert field.core.counters["model_lost"] == 1
    (status,) = [one for one in field.to_coordinator[-2:] if isinstance(one, m.EdgeStatus)]
    assert status.model == ""
    field.run_for(1.0)
    field.give_model()
    field.order(2)
    assert field.run_until_report(2).used == 3
    assert len(field.notes) == 1


def test_what_was_read_of_a_damaged_model_is_not_sent_of_the_one_that_follows(
    tmp_path: Path,
) -> None:
    field = _field(tmp_path, 100_000)
    field.order(deadline_ms=30_000, max_wait_ms=60_000)
    _cut_models(field)
    assert field.run_until_report().failed == "the edge's model is lost"
    field.give_model()
    field.order(2)
    assert field.run_until_report(2).used == 3


def test_an_update_is_synced_before_its_agent_has_a_receipt_after_a_kill_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, sync, receipts_before = _field(tmp_path, 64), os.fdatasync, list[int]()

    def killed_at_first(fd: int) -> None:
        receipts_before.append(len(field.agents["a0"].receipts))
        if len(receipts_before) == 1:
            raise Killed
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", killed_at_first)
    field.agents["a1"].work_s = field.agents["a2"].work_s = 9.0
    field.order(deadline_ms=30_000, max_wait_ms=60_000)
    field.run_for(3.0)
    assert [len(field.agents[name].receipts) for name in WEIGHTS] == [1, 0, 0]
    assert receipts_before == [0, 0]


def test_after_a_round_whose_end_found_no_room_none_begins_and_a_kill_repeats_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, append, full = _field(tmp_path, 100_000), Journal.append, [True]

    def refuse(journal: Journal, record: Record, data: bytes = b"") -> Place:
        if isinstance(record, Memory) and full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(journal, record, data)

    monkeypatch.setattr(Journal, "append", refuse)
    field.receipt_reports = False
    field.order()
    first = field.run_until_report()
    field.order(2)
    assert "found no room" in field.run_until_report(2).failed
    assert [len(agent.receipts) for agent in field.agents.values()] == [1, 1, 1]
    for one in (full, field.reports, field.agents):
        one.clear()
    field.restart()
    again = field.run_until_report()
    assert (again.used, again.model) == (3, first.model)


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_update_whose_sync_failed_is_written_again_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    field, sync, path = _field(tmp_path, 64), os.fdatasync, tmp_path / "spool" / "journal"
    failing = [OSError(5, "Input/output error")]
    before = path.stat()

    def sync_at_second_try(fd: int) -> None:
        if failing:
            raise failing.pop()
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", sync_at_second_try)
    field.agents["a2"].work_s = 5.0
    field.order(deadline_ms=30_000, max_wait_ms=60_000)
    field.run_for(3.5)
    assert field.core.counters["disk_failed"] == 1
    assert [len(field.agents[name].receipts) for name in WEIGHTS] == [1, 1, 0]
    if forgotten and path.stat().st_ino == before.st_ino:
        # A power cut: the kernel had let go of what the failed sync was of.
        with path.open("r+b") as file:
            file.seek(before.st_size)
            file.write(bytes(100))
    field.restart()
    report = field.run_until_report()
    assert (report.used, report.weight) == (3, 60.0)
    assert report.model == digest_of(encode_tensors(expected_mean(64, WEIGHTS)))


def test_a_model_that_takes_long_to_make_leaves_no_update_to_be_looked_for(tmp_path: Path) -> None:
    field = field_of(tmp_path, 1, size=100_000, job_delay_s=1.5)
    field.order(deadline_ms=9000, max_wait_ms=9000)
    field.run_until_report()
    field.run_for(5.0)
    assert field.agents["a0"].receipts
    assert not [one.text for one in field.notes if "failed" in one.text]
