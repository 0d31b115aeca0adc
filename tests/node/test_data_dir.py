"""The lock of a data directory: what holds it, and what only looks so."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_node.data_dir import DataDirLock, holder_of
from fedagent_node.errors import DataDirBusyError, DataDirError

HOLD = """
import sys
from pathlib import Path
from fedagent_node.data_dir import DataDirLock
with DataDirLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_holder_is_who_has_the_lock_not_who_wrote_its_number(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert holder_of(tmp_path) == process.pid
        process.kill()
    # Killed, it left its number; here it is even that of a process that lives.
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    assert holder_of(tmp_path) is None


def test_a_look_at_the_lock_does_not_keep_a_start_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(
            "fedagent_node.data_dir.time.sleep",
            lambda _: fcntl.flock(looking, fcntl.LOCK_UN),
        )
        with DataDirLock(tmp_path):
            assert holder_of(tmp_path) == os.getpid()


def test_two_do_not_share_a_directory(tmp_path: Path) -> None:
    with DataDirLock(tmp_path), pytest.raises(DataDirBusyError) as caught:
        DataDirLock(tmp_path).acquire()
    assert caught.value.pid == os.getpid()


def test_what_cannot_be_a_directory_is_said_with_the_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirError, match="--data-dir"):
            DataDirLock(path).acquire()
