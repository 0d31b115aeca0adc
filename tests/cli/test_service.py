"""Roles as services: the files, who may read what, and what stays when it is done again."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from fedagent_agent.__main__ import EXIT_CODES as AGENT
from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_cli.main import app
from fedagent_cli.role import launch, service, systemd
from fedagent_cli.role.systemd import Service, unit_text
from fedagent_coordinator.exits import EXIT_CODES as COORDINATOR
from fedagent_edge.__main__ import EXIT_CODES as EDGE
from fedagent_node.errors import REFUSED_SETTINGS
from fedagent_node.settings import SettingError

ROLES = ("agent", "edge", "coordinator")
needs_systemctl = pytest.mark.skipif(
    shutil.which("systemctl") is None, reason="systemctl is not installed"
)


def a_service(**changed: object) -> Service:
    made = {
        "role": "agent",
        "program": ("/opt/fedagent/bin/fedagent",),
        "reads": (Path("/opt/fedagent/bin/fedagent"),),
        "config": Path("/etc/fedagent/agent.toml"),
    }
    return Service(**{**made, **changed})  # type: ignore[arg-type]  # a test's keywords


def typed(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["service", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    told = json.loads(done.output)
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_of_the_defaults_starts_its_role_and_not_again_where_that_is_no_use(
    role: str,
) -> None:
    text = unit_text(a_service(role=role, config=Path(f"/etc/fedagent/{role}.toml")))
    start = f"ExecStart=/opt/fedagent/bin/fedagent {role} --config /etc/fedagent/{role}.toml"
    assert start in text.splitlines()
    assert "$" not in text
    line = next(one for one in text.splitlines() if one.startswith("RestartPrevent"))
    assert {"2", "75"} <= set(line.partition("=")[2].split())


@pytest.mark.parametrize("role", ROLES)
def test_the_example_settings_are_taken_as_they_are_and_with_every_line(
    role: str, tmp_path: Path
) -> None:
    example = (places.bundled("systemd") / f"{role}.toml").read_text()
    whole = "\n".join(line.removeprefix("# ") for line in example.splitlines() if " = " in line)
    for text in (example, whole):
        file = tmp_path / "settings.toml"
        file.write_text(text)
        launch.check(role, {**launch.read_config(file), "data_dir": str(tmp_path)})


def test_a_user_a_folder_and_files_of_root_are_written_into_the_unit() -> None:
    text = unit_text(
        a_service(
            user="pi",
            data_dir=Path("/srv/my data"),
            program=("/home/pi/fed 50%/bin/fedagent",),
            reads=(Path("/home/pi/fed 50%/bin/fedagent"),),
            files={"tls-ca": Path("/root/ca.pem"), "password-file": Path("/root/secret")},
        )
    )
    assert (
        'ExecStart="/home/pi/fed 50%%/bin/fedagent" agent --config /etc/fedagent/agent.toml '
        '--data-dir "/srv/my data" --tls-ca ${CREDENTIALS_DIRECTORY}/tls-ca '
        "--password-file ${CREDENTIALS_DIRECTORY}/password-file\n"
    ) in text
    for line in ("User=pi", "ProtectHome=read-only", 'ReadWritePaths="/srv/my data"'):
        assert f"\n{line}\n" in text
    assert "LoadCredential=tls-ca:/root/ca.pem\nLoadCredential=password-file:/root/secret\n" in text
    assert "DynamicUser" not in text


@pytest.mark.parametrize("mark", ["\n", "\r", "\0", "\x85", "\u2028"])
@pytest.mark.parametrize("of", ["config", "data_dir", "files", "program", "user"])
def test_a_line_of_its_own_does_not_get_into_a_unit(of: str, mark: str) -> None:
    line = f"/x{mark}ExecStartPre=/bin/touch /pwned"
    changed: dict[str, object] = {
        "config": Path(line),
        "data_dir": Path(line),
        "files": {"tls-ca": Path(line)},
        "program": (line,),
        "user": line,
    }
    with pytest.raises(UsageError, match="control character") as told:
        unit_text(a_service(**{"user": "pi", of: changed[of]}))
    assert mark not in str(told.value)


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What is given to another user, and whether links are followed for that."""
    given: list[tuple[str, bool]] = []

    def note(path: Path, _user: int, _group: int, *, follow_symlinks: bool = True) -> None:
        given.append((path.name, follow_symlinks))

    monkeypatch.setattr(os, "chown", note)
    return given


def test_only_a_data_folder_that_was_not_there_is_given_to_its_user(
    tmp_path: Path, given_away: list[tuple[str, bool]]
) -> None:
    made = tmp_path / "srv" / "agent"
    systemd.make_data_dir(a_service(user="nobody", data_dir=made))
    assert made.is_dir()
    assert made.stat().st_mode & 0o777 == 0o700
    assert given_away == [("agent", False)]
    own = pwd.getpwuid(os.geteuid()).pw_name
    systemd.make_data_dir(a_service(user=own, data_dir=made))
    assert len(given_away) == 1, "it is the user's already"


@pytest.mark.parametrize("kind", ["folder", "link", "link to nothing", "file", "below a file"])
def test_what_is_there_and_is_not_the_users_is_refused(
    kind: str, tmp_path: Path, given_away: list[tuple[str, bool]]
) -> None:
    path, there = tmp_path / "data", tmp_path / "there"
    there.mkdir()
    match kind:
        case "folder":
            path = there
        case "link":
            path.symlink_to(there)
        case "link to nothing":
            path.symlink_to(tmp_path / "nothing")
        case "file":
            path.touch()
        case _:
            path.touch()
            path /= "data"
    with pytest.raises(UsageError, match=r"--data-dir: .*; name a new one"):
        systemd.make_data_dir(a_service(user="nobody", data_dir=path))
    assert not given_away


@needs_systemctl
def test_installing_twice_changes_nothing_and_keeps_edited_settings(tmp_path: Path) -> None:
    root = ("--root", str(tmp_path))

    def states() -> list[object]:
        files = typed("install", "edge", *root)["files"]
        assert isinstance(files, list)
        return [file["state"] for file in files]

    assert states() == ["new", "new"]
    assert (
        tmp_path / "etc/systemd/system/multi-user.target.wants/fedagent-edge.service"
    ).is_symlink()
    settings = tmp_path / "etc/fedagent/edge.toml"
    settings.write_text('name = "mine"\n')
    assert states() == ["same", "kept"]
    (tmp_path / "etc/systemd/system/fedagent-edge.service").write_text("[Unit]\n")
    assert states() == ["changed", "kept"]
    assert settings.read_text() == 'name = "mine"\n'
    removed = typed("uninstall", "edge", *root)
    assert (removed["removed"], removed["kept"]) == (True, [str(settings)])
    data = tmp_path / "var/lib/fedagent-edge"
    data.parent.mkdir(parents=True)
    data.symlink_to("private/fedagent-edge")
    again = typed("uninstall", "edge", *root)
    assert (again["removed"], again["kept"]) == (False, [str(settings), str(data)])
    assert typed("uninstall", "agent", *root)["kept"] == []
    assert settings.exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("role", ROLES)
def test_systemd_takes_the_units(role: str, tmp_path: Path) -> None:
    files = typed("install", role, "--dry-run", *tls(tmp_path))
    text = files["files"][0]["text"]  # type: ignore[index]  # JSON data
    path = tmp_path / f"fedagent-{role}.service"
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("role", ROLES)
def test_systemd_finds_a_unit_little_exposed(role: str, tmp_path: Path) -> None:
    unit = tmp_path / f"fedagent-{role}.service"
    unit.write_text(unit_text(a_service(role=role)))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:]


def test_a_service_of_ones_own_needs_no_root_and_asks_for_nothing_of_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    told = typed("install", "agent", "--mine", "--dry-run")
    unit, settings = cast("list[dict[str, str]]", told["files"])
    assert unit["path"] == str(tmp_path / "systemd/user/fedagent-agent.service")
    assert settings["path"] == str(tmp_path / "fedagent/agent.toml")
    assert "WantedBy=default.target" in unit["text"]
    for of_root in ("DynamicUser", "StateDirectory", "Capability", "Protect", "After=", "/etc/"):
        assert of_root not in unit["text"]
    assert "NoNewPrivileges=yes" in unit["text"]
    assert told["commands"][0] == "systemctl --user daemon-reload"  # type: ignore[index]
    monkeypatch.setattr(systemd, "lingers", lambda: False)
    assert "enable-linger" in str(typed("install", "agent", "--mine", "--dry-run")["note"])
    with pytest.raises(UsageError, match="cannot be combined with"):
        typed("install", "agent", "--mine", "--user", "pi")
    with pytest.raises(UsageError, match="your user has no systemd here; log in"):
        typed("uninstall", "agent", "--mine")


def tls(folder: Path) -> list[str]:
    found = []
    for part in ("ca", "cert", "key"):
        (folder / part).touch()
        found += [f"--tls-{part}", str(folder / part)]
    return found


def test_a_dry_run_needs_nothing_and_changes_nothing(tmp_path: Path) -> None:
    told = typed("install", "agent", "--dry-run", "--root", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert told["commands"] == [f"systemctl --root {tmp_path} enable fedagent-agent"]


def test_where_nobody_can_make_services_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "systemd_runs", lambda **_: False)
    with pytest.raises(UsageError, match="systemd is not running here; --dry-run prints"):
        typed("uninstall", "agent")
    monkeypatch.setattr(systemd, "systemd_runs", lambda **_: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["fedagent", "service", "install", "agent", "--user", "pi"])
    with pytest.raises(
        UsageError, match=r"belong to root; sudo .* service install agent --user pi"
    ):
        typed("install", "agent")
    with pytest.raises(UsageError, match="--data-dir needs --user"):
        typed("install", "agent", "--data-dir", "/srv")


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
    service = a_service(reads=(program,))
    assert systemd.unseen(service) == ""
    home.chmod(0o700)
    assert systemd.unseen(service) == str(home)
    assert systemd.unseen(a_service(reads=(program,), user="root")) == ""
    with pytest.raises(UsageError, match="useradd --system"):
        systemd.unseen(a_service(user="nobody-of-that-name"))


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"reads": (Path("/var/tmp/venv/bin/fedagent"),)}, "install it elsewhere"),
        ({"config": Path("/tmp/agent.toml")}, "name another --config"),
        ({"data_dir": Path("/tmp/data"), "user": "root"}, "name another --config or --data-dir"),
    ],
)
def test_what_a_service_cannot_see_in_its_own_tmp_is_named(
    changed: dict[str, object], hint: str
) -> None:
    note = "; ".join(service._note(a_service(**{"reads": (), **changed})))
    assert "its own /tmp and /var/tmp" in note
    assert hint in note
    assert a_service().in_tmp is a_service(**changed, mine=True).in_tmp is None


def test_a_dry_run_notes_settings_below_tmp() -> None:
    told = typed("install", "edge", "--dry-run", "--config", "/tmp/no-such/edge.toml")
    assert "its own /tmp and /var/tmp" in str(told["note"])


@pytest.mark.parametrize("table", [AGENT, EDGE, COORDINATOR], ids=ROLES)
def test_what_no_restart_fixes_ends_with_2(table: Sequence[tuple[type[Exception], int]]) -> None:
    for refused in (SettingError, *REFUSED_SETTINGS):
        assert next(code for kind, code in table if issubclass(refused, kind)) == 2
