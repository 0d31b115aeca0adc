"""A backup is made beside a running coordinator, and restored without a word lost in silence."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagent_coordinator import backup
from fedagent_coordinator.backup import back_up, refuse_half_restored, restore
from fedagent_coordinator.books.mark import MARK
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.errors import HistoryLostError, RefusedError
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.standing import open_site
from fedagent_node.data_dir import load_or_create
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.lost_site import Lost
from tests.fakes.stored_runs import Crash, begun, play, small_plan, small_view, tampered
from tests.typed import fedagent


def _filled(folder: Path) -> str:
    with Books(folder, identity=load_or_create(folder)) as store:
        run = begun(store).run_id
        play(store, run, small_plan(small_view(1, [100])), {0})
    (folder / "models").mkdir()
    (folder / "models" / ("a" * 64)).write_bytes(b"model")
    open_site(folder, "home")
    Enrolment(folder).close()
    return run


def test_the_copy_is_whole_private_and_counts_on(tmp_path: Path) -> None:
    folder, copy, again = (tmp_path / name for name in ("data", "copy", "again"))
    run = _filled(folder)
    with Books(folder, identity=load_or_create(folder)) as store:  # it runs
        store.reserve(run, small_plan(small_view(2, [100])), policy="random")
        said = fedagent("backup", str(copy), "--data-dir", str(folder))
    assert said.returncode == 0, said.stderr
    assert load_or_create(copy) == load_or_create(folder)
    done = fedagent("restore", str(copy), "--data-dir", str(again))
    assert done.returncode == 0, done.stderr
    for name in (f"models/{'a' * 64}", "site/ca.pem", "site.db", "identity.json"):
        assert (again / name).exists()
        assert (again / name).stat().st_mode & 0o077 == 0
    with Books(again, identity=load_or_create(again)) as store:
        assert store.read.round_state(run, 2) == "open"
        assert store.read.ledger.show(limit=1)[0].target.startswith("restored from a backup of")
        assert store.read.ledger.verify().problems == ()


def test_an_older_copy_is_laid_down_on_purpose_only(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    run = _filled(folder)
    back_up(folder, copy)
    with Books(folder, identity=load_or_create(folder)) as store:
        play(store, run, small_plan(small_view(2, [100])), {0})
        head = store.head
    assert head is not None
    with pytest.raises(RefusedError, match="is older than"):
        restore(copy, folder)
    done = restore(copy, folder, accept_lost_history=True)
    assert done.aside is not None
    assert (done.aside / "coordinator.db").exists()
    with Books(folder, identity=load_or_create(folder)) as store:
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
        with pytest.raises(HistoryLostError):
            restore(copy, tmp_path / "again")
        said = fedagent("restore", str(copy), "--data-dir", str(folder))
    assert said.returncode != 0
    assert said.stderr.count("\n") == 1
    assert "Traceback" not in said.stderr


def test_edges_know_what_a_restored_coordinator_does_not(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    given = recipe("rounds.count=8", "rounds.every_s=1")
    edges = toy_edges(given)
    site = Site(data, given, edges, identity=load_or_create(data))
    site.run(until=1.5)
    back_up(data, copy)
    site.kernel.run(until=site.kernel.now + 2.0)
    site.close()
    shutil.rmtree(data)
    restore(copy, data)
    with pytest.raises(HistoryLostError, match="is a witness of entry"):
        Site(data, given, edges, identity=load_or_create(data)).run()


@pytest.fixture
def revoked(tmp_path: Path) -> str:
    """A directory, its backup, and since then a device that was revoked; returns who."""
    lost = Lost(tmp_path / "data", tmp_path / "copy")
    _filled(lost.folder)
    gone = lost.certify("hall", at=time.time())
    back_up(lost.folder, lost.copy)
    lost.revoke(gone, at=time.time())
    return gone


def cut_short(step: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at a step of `restore`, once part of it is done; ``renamed`` is between the renames."""
    syncs = [0]

    def stop(*_: object, **__: object) -> None:
        raise error(f"at {step}")

    def half(source: Path, target: Path, **_: object) -> None:
        target.mkdir()
        shutil.copy(source / "site.db", target)
        stop()

    def after(number: int) -> Callable[[Path], None]:
        def sync(_: Path) -> None:
            syncs[0] += 1
            if syncs[0] == number:
                stop()

        return sync

    match step:
        case "copied":
            monkeypatch.setattr(shutil, "copytree", half)
        case "noted":
            monkeypatch.setattr(Books, "note", stop)
        case "synced":
            monkeypatch.setattr(backup, "_sync_all", stop)
        case "renamed":
            monkeypatch.setattr(backup, "sync_folder", after(1))
        case "put in place":
            monkeypatch.setattr(backup, "sync_folder", after(2))


STEPS = ("copied", "noted", "synced", "renamed", "put in place")


def entries_named(store: Books, text: str) -> int:
    return sum(entry.target.startswith(text) for entry in store.read.ledger.show(limit=-1))


@pytest.mark.parametrize("step", STEPS)
def test_a_restore_that_is_cut_short_and_done_again_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revoked: str, step: str
) -> None:
    error: type[BaseException] = OSError if step == "synced" else Crash
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with monkeypatch.context() as fails:
        cut_short(step, error, fails)
        with pytest.raises(error, match=f"at {step}"):
            restore(copy, folder)
    assert (step == "renamed") != folder.exists()
    if folder.exists():
        with Enrolment(folder) as site:
            assert site.revoked().ids == {revoked}
    # What was put in place knows a note more than the backup.
    done = restore(copy, folder, accept_lost_history=step == "put in place")
    assert done.aside is not None
    with Enrolment(folder) as site, Enrolment(done.aside) as former:
        assert site.revoked().ids == former.revoked().ids == {revoked}
    with Books(folder, identity=load_or_create(folder)) as store:
        assert entries_named(store, "restored from a backup of") == 1
        assert store.read.ledger.verify().problems == ()
    assert (folder / "models" / ("a" * 64)).read_bytes() == b"model"
    assert not (tmp_path / "data.restoring").exists()
    assert len(list(tmp_path.glob("data.before-restore-*"))) == 1 + (step == "put in place")


def test_no_coordinator_starts_anew_where_a_restore_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revoked: str
) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with monkeypatch.context() as fails:
        cut_short("renamed", Crash, fails)
        with pytest.raises(Crash):
            restore(copy, folder)
    (aside,) = tmp_path.glob("data.before-restore-*")
    with pytest.raises(RefusedError, match="was being restored when that was cut short") as caught:
        refuse_half_restored(folder)
    assert f"put the former data back: mv {aside}" in str(caught.value.hint)
    assert not folder.exists()
    restore(copy, folder)
    with Enrolment(folder) as site:
        assert site.revoked().ids == {revoked}


def test_what_was_paid_since_is_not_lost_in_silence_by_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    run = _filled(folder)
    back_up(folder, copy)
    with Books(folder, identity=load_or_create(folder)) as store:
        play(store, run, small_plan(small_view(2, [100])), {0})
    with monkeypatch.context() as fails:
        cut_short("renamed", Crash, fails)
        with pytest.raises(Crash):
            restore(copy, folder, accept_lost_history=True)
    with pytest.raises(RefusedError, match=r"is older than .*before-restore"):
        restore(copy, folder)
    restore(copy, folder, accept_lost_history=True)
    with Books(folder, identity=load_or_create(folder)) as store:
        kinds = {entry.kind: entry.target for entry in store.read.ledger.show(limit=2)}
        assert kinds["accept"].startswith("accepted: it has entry")


def test_a_damaged_list_of_members_is_given_up_on_purpose_only(
    tmp_path: Path, revoked: str
) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    (folder / "site.db").write_bytes(revoked.encode() * 99)
    with pytest.raises(RefusedError, match=r"site\.db is damaged .*accept the loss"):
        restore(copy, folder)
    restore(copy, folder, accept_lost_history=True)
    with Books(folder, identity=load_or_create(folder)) as store:
        told = store.read.ledger.show(limit=2)[1].target
        assert "revoke again who was revoked since" in told


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    return Lost.backed_up(tmp_path)


@pytest.mark.parametrize("mark", ["whole", "damaged", "missing"])
def test_who_joined_since_the_backup_still_belongs_and_can_be_revoked(
    lost: Lost, mark: str
) -> None:
    """Also where the disk that is restored has lost more."""
    now = time.time()
    if mark == "damaged":
        (lost.folder / MARK).write_bytes(bytes(1024))
    elif mark == "missing":
        (lost.folder / MARK).unlink()
    late = lost.certify("late", at=now)
    with Enrolment(lost.folder) as enrolment:
        enrolment.invite("porch", "agent", b"used since", now=now)
        enrolment._connection.execute("UPDATE invitations SET used_by = ?", (late,))
    restore(lost.copy, lost.folder)
    with Enrolment(lost.folder) as enrolment:
        assert enrolment.agents() == {late}
        assert enrolment.certificate_of(late) is not None
        used = "SELECT used_by FROM invitations"
        assert enrolment._connection.execute(used).fetchall() == [(late,)], "only once"
    assert lost.held["late"].serial in lost.revoke(late, at=now)


def test_who_was_revoked_on_either_side_stays_so(lost: Lost) -> None:
    """Also where a newer backup is laid over an older directory that has gone its own way."""
    now = time.time()
    late, other = lost.certify("late", at=now), lost.certify("other", at=now)
    shutil.copytree(lost.folder, older := lost.folder.with_name("older"))
    serials = lost.revoke(late, at=now)
    shutil.rmtree(lost.copy)
    back_up(lost.folder, lost.copy)
    with Enrolment(older) as enrolment:
        enrolment.revoke(other, now=now)
        serials |= enrolment.revoked().serials
    restore(lost.copy, older)
    with Enrolment(older) as enrolment:
        assert enrolment.revoked().ids == {late, other}
        assert enrolment.revoked().serials == serials


def test_members_of_another_authority_of_that_name_are_not_let_in(lost: Lost) -> None:
    now, other = time.time(), Lost(lost.folder.with_name("other"), lost.copy)
    with Books(other.folder, identity=load_or_create(other.folder)) as store:
        store.note("one")
    other.certify("stranger", at=now)
    other.revoke(other.certify("thief", at=now), at=now)
    restore(lost.copy, other.folder, accept_lost_history=True)
    with Enrolment(other.folder) as enrolment:
        assert enrolment.agents() == frozenset()
