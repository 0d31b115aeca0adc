"""What lies in deploy/ for other programs: read, and run where that is possible here."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme
import yaml

from fedagent_cli.role import launch
from tests.documents.machines import Space, why_not

DEPLOY = Path(__file__).parents[2] / "deploy"
FEDAGENT = str(Path(sys.executable).parent / "fedagent")
spaces = [pytest.mark.netns, pytest.mark.skipif(bool(why_not()), reason=why_not())]


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
