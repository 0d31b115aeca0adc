"""A data directory: its lock, what only looks like one, the identity and small files."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedagent_node.data_dir import (
    IDENTITY_FILE,
    DataDirLock,
    holder_of,
    load_or_create,
    passing,
    store_port,
    stored_port,
    write_private,
)
from fedagent_node.errors import DataDirBusyError, DataDirError, IdentityError
from fedagent_protocol.signed import identity_of
from fedagent_protocol.topics import check_id

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


def test_what_cannot_be_a_directory_is_said_with_the_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirError, match="--data-dir"):
            DataDirLock(path).acquire()


def test_the_identity_stays_and_signs(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "new")
    second = load_or_create(tmp_path / "new")
    assert first == second
    assert first.id == identity_of(first.public_bytes) == check_id(first.id)
    Ed25519PublicKey.from_public_bytes(first.public_bytes).verify(second.sign(b"data"), b"data")
    assert (tmp_path / "new" / IDENTITY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "new").iterdir()] == [IDENTITY_FILE]
    assert "private" not in repr(first)
    assert load_or_create(tmp_path / "other").id != first.id


def test_loading_does_not_import_cryptography(tmp_path: Path) -> None:
    load_or_create(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from fedagent_node.data_dir import load_or_create\n"
        "load_or_create(Path(sys.argv[1]))\n"
        "sys.exit(any(name.startswith('cryptography') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: b"[]",
        lambda _: b"\xff\xfe",
        lambda text: text.replace(b'"id": "', b'"id": "\xff'),
        lambda text: json.dumps({**json.loads(text), "id": "0" * 32}).encode(),
        lambda text: json.dumps({**json.loads(text), "private": "AAAA"}).encode(),
        lambda text: json.dumps({**json.loads(text), "public": 7}).encode(),
    ],
)
def test_a_damaged_identity_is_named_and_kept(tmp_path: Path, damage: object) -> None:
    load_or_create(tmp_path)
    path = tmp_path / IDENTITY_FILE
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(IdentityError, match="restore it from a copy"):
        load_or_create(tmp_path)
    assert path.read_bytes() == before


def test_a_second_process_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from fedagent_node.data_dir import DataDirLock\n"
        "from fedagent_node.errors import DataDirBusyError\n"
        "try:\n    DataDirLock(Path(sys.argv[1])).acquire()\n"
        "except DataDirBusyError as exc:\n    print(exc); sys.exit(3)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "d")]
    with DataDirLock(tmp_path / "d") as lock:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 3
        assert f"in use by process {os.getpid()}" in done.stdout
        with pytest.raises(DataDirBusyError):
            DataDirLock(lock.path).acquire()
    assert subprocess.run(command, check=False).returncode == 0
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_ports_are_remembered_by_name_and_damage_is_forgiven(tmp_path: Path) -> None:
    assert stored_port(tmp_path, "broker") == 0
    store_port(tmp_path, "broker", 1234)
    store_port(tmp_path, "other", 99)
    assert (stored_port(tmp_path, "broker"), stored_port(tmp_path, "other")) == (1234, 99)
    for damage in (b"{", b"[]", b'{"broker": "x"}', b'{"broker": 70000}'):
        (tmp_path / "ports.json").write_bytes(damage)
        assert stored_port(tmp_path, "broker") == 0
    store_port(tmp_path, "broker", 5)
    assert stored_port(tmp_path, "broker") == 5


@pytest.mark.parametrize("name", ["model.9182", "model.9182.part", "of.9182.update", "plain"])
def test_what_follows_the_first_dot_of_a_name_is_not_interned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interned: dict[str, str] = {}
    monkeypatch.setattr(sys, "intern", lambda text: interned.setdefault(text, text))
    path = passing(f"{tmp_path}/{name}")
    write_private(path, b"x")
    assert (path.parent, path.name) == (tmp_path, name)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert not any("9182" in text for text in interned.keys() - {tmp_path.name})
