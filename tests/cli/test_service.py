"""Roles as services: the files, who may read what, and what stays when it is done again."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedagent_agent.__main__ import EXIT_CODES as AGENT
from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_cli.main import app
from fedagent_cli.role import launch, systemd
from fedagent_cli.role.systemd import Service
from fedagent_coordinator.__main__ import EXIT_CODES as COORDINATOR
from fedagent_edge.__main__ import EXIT_CODES as EDGE
from fedagent_node.errors import JoinError
from fedagent_node.settings import SettingError, read_settings

ROLES = ("agent", "edge", "coordinator")
PROGRAM = Path("/opt/fedagent/bin/fedagent")
analyzed = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")


def a_service(**changed: Any) -> Service:
    made = {"role": "agent", "program": (str(PROGRAM),), "reads": (PROGRAM,)}
    return Service(**{**made, "config": Path("/etc/fedagent/agent.toml"), **changed})


def typed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["service", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    told: dict[str, Any] = json.loads(done.output)
    return told


@pytest.mark.parametrize("role", ROLES)
def test_the_example_settings_are_taken_as_they_are_and_with_every_line(
    role: str, tmp_path: Path
) -> None:
    example = (places.bundled("systemd") / f"{role}.toml").read_text()
    whole = "\n".join(line.removeprefix("# ") for line in example.splitlines() if " = " in line)
    for text in (example, whole):
        file = tmp_path / "settings.toml"
        file.write_text(text)
        launch.check(role, {**read_settings(str(file)), "data_dir": str(tmp_path)})


def test_a_unit_starts_its_role_as_its_user() -> None:
    home = "/home/pi/fed 50%/bin/fedagent"
    text = a_service(user="pi", program=(home,), reads=(Path(home),)).unit_text()
    for line in (
        'ExecStart="/home/pi/fed 50%%/bin/fedagent" agent --config /etc/fedagent/agent.toml',
        *("User=pi", "ProtectHome=read-only"),
    ):
        assert f"\n{line}\n" in text
    plain = a_service().unit_text()
    assert "\nDynamicUser=yes\n" in plain
    assert "\nProtectHome=yes\n" in plain
    assert "$" not in plain


@pytest.mark.parametrize(("of", "mark"), [("config", "\n"), ("program", "\0"), ("user", "\u2028")])
def test_a_line_of_its_own_does_not_get_into_a_unit(of: str, mark: str) -> None:
    line = f"/x{mark}ExecStartPre=/bin/touch /pwned"
    changed: dict[str, object] = {"config": Path(line), "program": (line,), "user": line}
    with pytest.raises(UsageError, match="control character") as told:
        a_service(**{of: changed[of]}).unit_text()
    assert mark not in str(told.value)


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemctl is not installed")
def test_installing_twice_changes_nothing_and_keeps_edited_settings(tmp_path: Path) -> None:
    root = ("--root", str(tmp_path))

    def states() -> list[object]:
        return [file["state"] for file in typed("install", "edge", *root)["files"]]

    assert states() == ["new", "new"]
    units = tmp_path / "etc/systemd/system"
    assert (units / "multi-user.target.wants/fedagent-edge.service").is_symlink()
    settings = tmp_path / "etc/fedagent/edge.toml"
    settings.write_text('name = "mine"\n')
    assert states() == ["same", "kept"]
    (units / "fedagent-edge.service").write_text("[Unit]\n")
    assert states() == ["changed", "kept"]
    assert settings.read_text() == 'name = "mine"\n'
    removed = typed("uninstall", "edge", *root)
    assert (removed["removed"], removed["kept"]) == (True, [str(settings)])
    data = tmp_path / "var/lib/fedagent-edge"
    data.parent.mkdir(parents=True)
    data.symlink_to("private/fedagent-edge")
    again = typed("uninstall", "edge", *root)
    assert (again["removed"], again["kept"]) == (False, [str(settings), str(data)])


@analyzed
@pytest.mark.parametrize("role", ROLES)
def test_systemd_takes_a_unit_and_finds_it_little_exposed(role: str, tmp_path: Path) -> None:
    text = typed("install", role, "--dry-run")["files"][0]["text"]
    path = tmp_path / f"fedagent-{role}.service"
    path.write_text(text)
    run = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, check=False)
    assert run.stderr == b""
    line = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(path)]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0


def test_where_nobody_can_make_services_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "systemd_runs", lambda **_: False)
    with pytest.raises(UsageError, match="systemd is not running here; --dry-run prints"):
        typed("uninstall", "agent")
    with pytest.raises(UsageError, match="your user has no systemd here; log in"):
        typed("uninstall", "agent", "--mine")
    monkeypatch.setattr(systemd, "systemd_runs", lambda **_: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["fedagent", "service", "install", "agent", "--user", "pi"])
    again = r"belong to root; sudo .* service install agent --user pi"
    with pytest.raises(UsageError, match=again):
        typed("install", "agent")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_program_that_its_user_may_not_read_is_named(open_folder: Path) -> None:
    home = open_folder / "home"
    program = home / "fed" / "bin" / "fedagent"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert a_service(reads=(program,)).unseen() == ""
    home.chmod(0o700)
    assert a_service(reads=(program,)).unseen() == str(home)
    with pytest.raises(UsageError, match="useradd --system"):
        typed("install", "agent", "--user", "nobody-of-that-name", "--dry-run")


@pytest.mark.parametrize("table", [AGENT, EDGE, COORDINATOR], ids=ROLES)
def test_what_no_restart_fixes_ends_with_2(table: Sequence[tuple[type[Exception], int]]) -> None:
    for refused in (SettingError, JoinError):
        assert next(code for kind, code in table if issubclass(refused, kind)) == 2
