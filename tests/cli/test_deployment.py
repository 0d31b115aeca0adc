"""What lies in deploy/ for other programs: read, and run where that is possible here."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from fedagent_cli.role import launch
from tests.documents.machines import Space, why_not

DEPLOY = Path(__file__).parents[2] / "deploy"
FEDAGENT = str(Path(sys.executable).parent / "fedagent")
spaces = [pytest.mark.netns, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found["services"]  # type: ignore[no-any-return]  # YAML data


@contextmanager
def alone() -> Iterator[Space]:
    with ExitStack() as stack:
        space = Space()
        stack.callback(space.close)
        space.ip("link", "set", "lo", "up")
        yield space


def until(pattern: str, log: Path, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < give_up, f"no {pattern}:\n{log.read_text()}"
        time.sleep(0.1)


@pytest.mark.parametrize("mark", [pytest.param(None, marks=spaces)])
def test_the_compose_file_makes_a_federation_of_members(mark: None, tmp_path: Path) -> None:
    """Each container's command and settings as a process; their names are loopback."""
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    (tmp_path / "join").mkdir()
    started = []
    with alone() as space:
        try:
            for number, (name, service) in enumerate(compose().items()):
                stage = dockerfile.partition(f" AS {service['build']['target']}\n")[2]
                entry = re.search(r"^ENTRYPOINT (\[.*\])$", stage, re.MULTILINE)
                assert entry is not None
                words = [*service.get("entrypoint", yaml.safe_load(entry[1]))]
                words += service.get("command", [])
                if "9100" in words:
                    words[words.index("9100")] = str(9100 + number)
                words = [
                    one.replace("$$", "$").replace("/join/", f"{tmp_path}/join/") for one in words
                ]
                words[0] = {"fedagent": FEDAGENT}.get(words[0], words[0])
                home = next(
                    one[: -len(":/data")] for one in service["volumes"] if one.endswith(":/data")
                )
                own = {
                    "FEDAGENT_HOME": str(tmp_path / home),
                    "FEDAGENT_WARM": "off",
                    **service.get("environment", {}),
                }
                host = r"\b(coordinator|edge)(?=:\d)"
                with (tmp_path / f"{name}.log").open("w") as log:
                    process = subprocess.Popen(
                        [
                            *space.enter,
                            *(re.sub(host, "127.0.0.1", w) for w in words),
                        ],
                        env={
                            "PATH": f"{Path(FEDAGENT).parent}:{os.environ['PATH']}",
                            "HOME": str(tmp_path),
                            **{key: re.sub(host, "127.0.0.1", text) for key, text in own.items()},
                        },
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                started.append(process)
                if {"condition": "service_completed_successfully"} in [
                    one.get("depends_on", {}).get(name) for one in compose().values()
                ]:
                    assert process.wait(60) == 0, (tmp_path / f"{name}.log").read_text()
            until(r"round: round=1 ordered=2 .*used=2", tmp_path / "coordinator.log", 60)
            alive = [*space.enter, sys.executable, str(DEPLOY / "docker/alive.py")]
            assert subprocess.run(alive, check=False).returncode == 0
            kept = [path.stat().st_mode & 0o777 for path in (tmp_path / "join").iterdir()]
            assert kept == [0o600] * 3
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)
    assert subprocess.run(alive[-2:], capture_output=True, check=False).returncode == 1


def test_the_compose_file_lets_nobody_in_who_was_not_invited() -> None:
    assert "permit" not in (DEPLOY / "compose.yaml").read_text().lower()
    roles = {name: one for name, one in compose().items() if "join:ro" in str(one["volumes"])}
    assert set(roles) == {"edge", "agent-1", "agent-2"}
    script = compose()["invitations"]["command"][0]
    for one in roles.values():
        assert f"invite {Path(one['command'][-1]).stem} " in script


def test_the_images_are_made_of_files_that_are_there() -> None:
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    stages = set(re.findall(r" AS (\S+)$", dockerfile, re.MULTILINE))
    assert {service["build"]["target"] for service in compose().values()} <= stages
    assert "USER fedagent\n\nFROM with-broker AS edge" in dockerfile, "an image runs as root"
    assert (DEPLOY.parent / "deploy/docker/alive.py").is_file()
    taken = re.findall(
        r"^!(\S+)$", (DEPLOY / "docker/Dockerfile.dockerignore").read_text(), re.MULTILINE
    )
    assert all((DEPLOY.parent / name).exists() for name in taken)


@pytest.mark.mosquitto
@pytest.mark.parametrize("mark", [pytest.param(None, marks=spaces)])
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_mosquitto_takes_our_file(mark: None, tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = ca.issue_cert("broker")
    own.private_key_pem.write_to_path(tmp_path / "broker.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "broker.pem")
    text = (DEPLOY / "mosquitto/fedagent.conf").read_text()
    (tmp_path / "fedagent.conf").write_text(
        text.replace("/etc/fedagent", str(tmp_path)) + "\nuser root\n"
    )
    with alone() as space, (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*space.enter, "mosquitto", "-c", str(tmp_path / "fedagent.conf")],
            stdout=log,
            stderr=log,
        )
        try:
            until("mosquitto version .* running", tmp_path / "log", 10)
        finally:
            process.terminate()
            assert process.wait(10) == 0
    assert "listen socket on port 8883" in (tmp_path / "log").read_text()


def test_the_settings_of_the_inventory_are_taken(tmp_path: Path) -> None:
    inventory = yaml.safe_load((DEPLOY / "ansible/inventory.example.yml").read_text())
    for group in inventory["fedagent"]["children"].values():
        for host in group["hosts"].values():
            settings = {**host["fedagent_settings"], "data_dir": str(tmp_path)}
            assert settings.pop("join", "STRING") == "STRING"
            launch.check(group["vars"]["fedagent_role"], settings)
