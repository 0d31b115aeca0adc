"""A backup is made beside a running coordinator, and restored without a word lost in silence."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedagent_coordinator.backup import back_up, restore
from fedagent_coordinator.enrolment import Enrolment
from fedagent_coordinator.errors import BackupError, HistoryLostError, LedgerBrokenError
from fedagent_coordinator.reader import open_reader
from fedagent_coordinator.store import Store
from fedagent_node.data_dir import count_start, load_or_create
from tests.fakes.stored_runs import begun, play, small_plan, small_view, tampered
from tests.typed import fedagent

from .test_daemon import HandEdge, coordinator, toy


def _filled(folder: Path) -> str:
    with Store(folder, identity=load_or_create(folder)) as store:
        run = begun(store).run_id
        play(store, run, small_plan(small_view(1, [100])), {0})
    (folder / "models").mkdir()
    (folder / "models" / ("a" * 64)).write_bytes(b"model")
    (folder / "site").mkdir()
    (folder / "site" / "ca.pem").write_bytes(b"ca")
    Enrolment(folder).close()
    return run


def test_the_copy_is_whole_private_and_counts_on(tmp_path: Path) -> None:
    folder, copy, again = (tmp_path / name for name in ("data", "copy", "again"))
    run = _filled(folder)
    starts = count_start(folder)
    with Store(folder, identity=load_or_create(folder)) as store:  # it runs
        store.reserve(run, small_plan(small_view(2, [100])), policy="random")
        said = fedagent("backup", str(copy), "--data-dir", str(folder))
    assert said.returncode == 0, said.stderr
    assert load_or_create(copy) == load_or_create(folder)
    done = fedagent("restore", str(copy), "--data-dir", str(again))
    assert done.returncode == 0, done.stderr
    for name in (f"models/{'a' * 64}", "site/ca.pem", "site.db", "identity.json"):
        assert (again / name).exists()
        assert (again / name).stat().st_mode & 0o077 == 0
    assert count_start(again) > starts + 500, "numbers that were used are not used again"
    with Store(again, identity=load_or_create(again)) as store:
        assert store.read.round_state(run, 2) == "open"
        assert store.read.ledger.show(limit=1)[0].target.startswith("restored from a backup of")
        assert store.read.ledger.verify().problems == ()


def test_an_older_copy_is_laid_down_on_purpose_only(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    run = _filled(folder)
    back_up(folder, copy)
    with Store(folder, identity=load_or_create(folder)) as store:
        play(store, run, small_plan(small_view(2, [100])), {0})
        head = store.head
    assert head is not None
    with pytest.raises(BackupError, match="is older than"):
        restore(copy, folder)
    done = restore(copy, folder, accept_lost_history=True)
    assert done.aside is not None
    assert (done.aside / "coordinator.db").exists()
    with Store(folder, identity=load_or_create(folder)) as store:
        store.check_witness("hall", head)  # this loss was accepted
        assert store.read.last_round(run) == 1


@pytest.mark.parametrize("what", ["nothing", "not empty", "broken"])
def test_what_cannot_be_copied_or_restored_is_one_line(tmp_path: Path, what: str) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    _filled(folder)
    if what == "nothing":
        said = fedagent("restore", str(tmp_path), "--data-dir", str(folder))
    elif what == "not empty":
        said = fedagent("backup", str(folder / "models"), "--data-dir", str(folder))
    else:
        back_up(folder, copy)
        tampered(copy, "UPDATE clients SET agent_id = 'somebody' WHERE idx = 0")
        with pytest.raises(LedgerBrokenError):
            restore(copy, tmp_path / "again")
        said = fedagent("restore", str(copy), "--data-dir", str(folder))
    assert said.returncode != 0
    assert said.stderr.count("\n") == 1
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("paid_since", [True, False])
async def test_edges_know_what_a_restored_coordinator_does_not(
    tmp_path: Path, paid_since: bool
) -> None:
    """Over a real broker: money that was paid since is refused, a number alone is skipped."""
    data, copy, edge_side = tmp_path / "data", tmp_path / "copy", toy()
    long: dict[str, Any] = {"sets": ("rounds.count=8",)}
    async with coordinator(tmp_path, **long) as process:
        ready = await process.until("ready")
        async with HandEdge(edge_side, str(ready["broker"])) as edge:
            await process.until("round")
            await process.until("round")
            back_up(data, copy)
            if paid_since:
                await process.until("round")
                await process.until("round")
            process.child.kill()
            await process.ended()
    with open_reader(copy) as reader:
        backed = reader.last_round(reader.run().run_id)
    if not paid_since:
        # It was ordered rounds that were never settled: only their numbers are gone.
        edge.head, edge.newest = None, (edge.newest[0], backed + 3)
    shutil.rmtree(data)
    restore(copy, data)
    async with coordinator(tmp_path, **long) as process:
        ready = await process.until("ready")
        async with HandEdge(toy(), str(ready["broker"]), knows=edge):
            if paid_since:
                assert await process.ended() == 32
                assert "is a witness of entry" in (tmp_path / "log.txt").read_text()
            else:
                end = await process.until("end")
                assert end["rounds_done"] == 8
                rounds = [row["round"] for row in process.events if row["event"] == "round"]
                assert rounds[0] == backed + 4
    if paid_since:
        accepting = {**long, "accept_lost_history": True}
        async with coordinator(tmp_path, **accepting) as process:
            ready = await process.until("ready")
            async with HandEdge(toy(), str(ready["broker"]), knows=edge):
                end = await process.until("end")
                assert (end["rounds_done"], end["ledger_balanced"]) == (8, True)


def test_a_witness_of_more_than_was_accepted_is_heard(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    run = _filled(folder)
    back_up(folder, copy)
    heads = []
    with Store(folder, identity=load_or_create(folder)) as store:
        for number in (2, 3):
            play(store, run, small_plan(small_view(number, [100])), {0})
            heads.append(store.head)
    older = tmp_path / "older"
    restore(copy, older)
    with Store(older, identity=load_or_create(older), accept_lost_history=True) as store:
        assert heads[0] is not None
        store.check_witness("hall", heads[0])
    with Store(older, identity=load_or_create(older)) as store:
        assert heads[1] is not None
        with pytest.raises(HistoryLostError):
            store.check_witness("hall", heads[1])


def joined(site: Enrolment, name: str) -> None:
    ident = name.encode().hex().ljust(32, "0")
    site._connection.execute(
        "INSERT INTO members VALUES (?, 'agent', ?, 'joined', '', x'', '', '', 0, 0)", (ident, name)
    )
    site._connection.execute(
        "INSERT INTO certificates VALUES (?, ?, x'00', 9e9, 9e9)", (ident[:8], ident)
    )


def test_who_was_revoked_since_the_backup_stays_revoked(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    _filled(folder)
    with Enrolment(folder) as site:
        for name in ("kitchen", "hall"):
            joined(site, name)
    back_up(folder, copy)
    with Enrolment(folder) as site:
        (gone,) = [one.id for one in site.members(now=1.0) if one.name == "hall"]
        site.revoke(gone, now=1.0)
        site.revoke(gone, now=2.0)
        number, serials = site.revocations()
    assert serials
    restore(copy, folder)
    with Enrolment(folder) as site:
        assert site.revoked_ids() == {gone}
        assert site.revocations() == (number + 1, serials)
        assert len(site.members(now=1.0)) == 2
