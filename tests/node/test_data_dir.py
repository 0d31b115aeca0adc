"""A data directory: its lock, what only looks like one, the identity and small files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedagent_node.data_dir import (
    IDENTITY_FILE,
    hold_data_dir,
    holder_of,
    load_or_create,
    store_port,
    stored_port,
)
from fedagent_node.errors import CredentialsError, SettingError
from fedagent_protocol.signed import identity_of
from fedagent_protocol.topics import check_id

HOLD = """
import sys
from pathlib import Path
from fedagent_node.data_dir import hold_data_dir
with hold_data_dir(Path(sys.argv[1])):
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


def test_what_cannot_be_a_directory_is_said_with_the_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingError, match="--data-dir"), hold_data_dir(path):
            pass


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: b"\xff\xfe",
        lambda text: text.replace(b'"id": "', b'"id": "\xff'),
        lambda text: json.dumps({**json.loads(text), "id": "0" * 32}).encode(),
        lambda text: json.dumps({**json.loads(text), "private": "AAAA"}).encode(),
    ],
)
def test_a_damaged_identity_is_named_and_kept(tmp_path: Path, damage: object) -> None:
    load_or_create(tmp_path)
    path = tmp_path / IDENTITY_FILE
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(CredentialsError, match="restore it from a copy"):
        load_or_create(tmp_path)
    assert path.read_bytes() == before


def test_ports_are_remembered_by_name_and_damage_is_forgiven(tmp_path: Path) -> None:
    assert stored_port(tmp_path, "broker") == 0
    store_port(tmp_path, "broker", 1234)
    store_port(tmp_path, "other", 99)
    assert (stored_port(tmp_path, "broker"), stored_port(tmp_path, "other")) == (1234, 99)
    for damage in (b"", b"[]", b"-1", b"70000"):
        (tmp_path / "broker.port").write_bytes(damage)
        assert stored_port(tmp_path, "broker") == 0
    store_port(tmp_path, "broker", 5)
    assert stored_port(tmp_path, "broker") == 5
