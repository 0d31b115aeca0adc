"""Copies of a coordinator's data directory: made beside a running one, laid down with care.

A copy is as old as it is. What was paid since is known to edges, which are witnesses: a coordinator
on an older copy is ended by the first hello that knows better (docs/coordinator.md).
"""

import glob
import os
import shutil
import sqlite3
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedagent_coordinator.books.ledger import GENESIS
from fedagent_coordinator.books.mark import MARK, HighWaterMark, MarkFile, read_mark
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.site.enrolment import DATABASE as SITE_DATABASE
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_node.data_dir import (
    LOCK_FILE,
    hold_data_dir,
    load_or_create,
    make_private,
    sync_folder,
    write_private,
)
from fedagent_node.site import FOLDER
from fedagent_node.site.credentials import CA_FILE
from fedagent_protocol.signed import ledger_head

from .errors import HistoryLostError, RefusedError, StoreDamagedError

ABOUT = "backup.json"
_OWN = {LOCK_FILE, MARK, ABOUT}
_ASIDE = ".before-restore-"
_PART = ".restoring"
_OF_SQLITE = ("-wal", "-shm", "-journal")


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy is of; `seq` is the newest entry of its ledger."""

    at_ms: int
    seq: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What was laid down; `aside` is where the former directory is now, if there was one."""

    backup: Backup
    aside: Path | None


def back_up(folder: Path, target: Path) -> Backup:
    """Copy a data directory, whether its coordinator runs or not, into one that is empty or new.

    Raises:
        RefusedError: The target has files, or there is nothing to copy.
        OSError, sqlite3.Error: A disk failed.
    """
    if target.exists() and any(target.iterdir()):
        raise RefusedError(f"{target} is not empty", "name another folder")
    if not (folder / DATABASE).exists():
        raise RefusedError(f"{folder} has no coordinator.db", "name a coordinator's --data-dir")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700, parents=True)
    mark = _copy_ledger(folder, part)
    # After the ledger: what it names is not collected so soon.
    _copy_files(folder, part)
    about = Backup(at_ms=time.time_ns() // 1_000_000, seq=mark.seq)
    write_private(part / ABOUT, msgspec.json.encode(about))
    if target.exists():
        target.rmdir()
    part.rename(target)
    sync_folder(target.parent)
    return about


def restore(backup: Path, folder: Path, *, accept_lost_history: bool = False) -> Restored:
    """Lay a copy down as a data directory; what was there before is moved aside, not deleted.

    All is made beside the directory, and put in its place by two renames. Where that was cut short,
    the next try begins with the same former directory.

    Raises:
        RefusedError: It is not a backup, or older than what is there and nobody accepts that.
        DataDirBusyError: A coordinator works on the directory.
        HistoryLostError: The ledger of the copy is not whole.
    """
    about = _read_backup(backup)
    former = former_data(folder)
    with nullcontext() if former is None else hold_data_dir(former):
        seq, lost = (0, "") if former is None else _lost(former, about)
        if lost and not accept_lost_history:
            raise RefusedError(
                f"{backup} is older than {former}: {lost}",
                "restore a newer one, or accept the loss with --accept-lost-history",
            )
        if former not in {None, folder}:
            # Back in its place, it is found there by the next try.
            former = former.rename(folder)
            sync_folder(folder.parent)
        part = folder.with_name(folder.name + _PART)
        try:
            shutil.rmtree(part, ignore_errors=True)  # of a try that was cut short
            shutil.copytree(backup, part, ignore=shutil.ignore_patterns(ABOUT))
            part.chmod(0o700)
            _keep_site(former, part)
            made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.at_ms / 1000))
            with Books(part, identity=load_or_create(part)) as store:
                if lost:
                    store.accept(lost, seq)
                store.note(f"restored from a backup of {made}, entry {about.seq}")
            _sync_all(part)
        except Exception:
            shutil.rmtree(part, ignore_errors=True)  # a full disk is as full as before
            raise
        aside = None
        if former is not None:
            aside = folder.with_name(f"{folder.name}{_ASIDE}{time.time_ns() // 10**6}")
            folder.rename(aside)
            sync_folder(folder.parent)
        part.rename(folder)
        sync_folder(folder.parent)
    return Restored(about, aside)


def former_data(folder: Path) -> Path | None:
    """Return what a backup is to replace: the data directory, or where it was moved to.

    It is aside, and the new one still a part, if `restore` was cut short between its renames.
    """
    if folder.exists():
        return folder
    aside = sorted(folder.parent.glob(f"{glob.escape(folder.name)}{_ASIDE}*"))
    return aside[-1] if aside and folder.with_name(folder.name + _PART).exists() else None


def refuse_half_restored(folder: Path) -> None:
    """Make no new data directory where `restore` has not put one in place yet.

    Raises:
        RefusedError: It was cut short; its former data is elsewhere.
    """
    former = former_data(folder)
    if former not in {None, folder}:
        raise RefusedError(
            f"{folder} was being restored when that was cut short; its former data is in {former}",
            f"run `fedagent restore` again, or put the former data back: mv {former} {folder}",
        )


def _read_backup(backup: Path) -> Backup:
    try:
        about = msgspec.json.decode((backup / ABOUT).read_bytes(), type=Backup)
    except (OSError, msgspec.MsgspecError) as error:
        raise RefusedError(
            f"{backup} is not a backup", "name what `fedagent backup` wrote"
        ) from error
    with open_reader(backup) as reader:
        report = reader.ledger.verify()
    if report.problems:
        raise HistoryLostError(str(backup), report.problems[0])
    return about


def _lost(former: Path, about: Backup) -> tuple[int, str]:
    """Return the newest entry of a directory, and what it knows that a backup does not."""
    try:
        mark = read_mark(former / MARK)
    except ValueError:
        mark = None  # there is nothing left to lose
    seq, (_, damage) = 0 if mark is None else mark.seq, _members_of(former)
    lost = [f"{damage}: revoke again who was revoked since"] if damage else []
    if mark is not None and seq > about.seq:
        lost.insert(0, f"it has entry {seq} ({mark.hash[:16]}), the backup ends at {about.seq}")
    return seq, ", ".join(lost)


def _keep_site(former: Path | None, part: Path) -> None:
    """Go on with who belonged to the site before, and who was revoked there or in the copy."""
    known = former is not None and _members_of(former)[0]
    if former is None or not known:
        if (part / SITE_DATABASE).exists():
            with Enrolment(part) as site:
                site.skip_lists()
        return
    authorities = [folder / FOLDER / CA_FILE for folder in (former, part)]
    same = len({one.read_bytes() if one.exists() else b"" for one in authorities}) == 1
    with Enrolment(former) as before, Enrolment(part) as copy:
        later = same and before.asked_s() >= copy.asked_s()
        gone = copy.revoked() if later else before.revoked()
    if later:
        _copy_database(former / SITE_DATABASE, part / SITE_DATABASE)
    with Enrolment(part) as site:
        site.learn(gone, now=time.time())
        if not same:
            site.skip_lists()


def _members_of(folder: Path) -> tuple[bool, str]:
    """Return whether a folder has members that can be read, and why not if they are damaged."""
    if not (folder / SITE_DATABASE).exists():
        return False, ""
    try:
        with Enrolment(folder) as site:
            site.revoked()
    except (StoreDamagedError, sqlite3.DatabaseError) as error:
        return False, str(error)
    return True, ""


def _sync_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() or path.is_file():
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _copy_ledger(folder: Path, part: Path) -> HighWaterMark:
    make_private(part / DATABASE)
    _copy_database(folder / DATABASE, part / DATABASE)
    with closing(sqlite3.connect(part / DATABASE)) as sql:
        query = "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
        seq, hash_ = sql.execute(query).fetchone() or (0, GENESIS)
    signature = load_or_create(folder).sign(ledger_head(seq, hash_)) if seq else b""
    mark = HighWaterMark(seq=seq, hash=hash_.hex(), signature=signature)
    MarkFile(part / MARK, mark).close()
    return mark


def _copy_files(folder: Path, part: Path) -> None:
    for path in sorted(folder.rglob("*")):
        copy = part / path.relative_to(folder)
        if path.name in _OWN or path.name.endswith(_OF_SQLITE) or path == folder / DATABASE:
            continue
        if path.is_dir():
            copy.mkdir(mode=0o700, exist_ok=True)
        elif path.suffix == ".db":
            make_private(copy)
            _copy_database(path, copy)
        elif path.is_file():
            try:
                write_private(copy, path.read_bytes())
            except FileNotFoundError:
                continue  # a model that was collected, a file that was replaced


def _copy_database(source: Path, copy: Path) -> None:
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(copy)) as new,
    ):
        old.backup(new)
