"""What lies in deploy/ for other programs: read, and run where that is possible here."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import trustme
import yaml

from fedagent_cli.role import launch
from tests.documents.machines import Space, Terminal, why_not

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.mosquitto
@pytest.mark.netns
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_mosquitto_takes_our_file(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = ca.issue_cert("broker")
    own.private_key_pem.write_to_path(tmp_path / "broker.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "broker.pem")
    text = (DEPLOY / "mosquitto/fedagent.conf").read_text()
    (tmp_path / "fedagent.conf").write_text(
        text.replace("/etc/fedagent", str(tmp_path)) + "\nuser root\n"
    )
    with closing(Space()) as space:
        space.ip("link", "set", "lo", "up")
        command = [*space.enter, "mosquitto", "-c", str(tmp_path / "fedagent.conf")]
        log = tmp_path / "log"
        broker = Terminal("mosquitto", command, cwd=tmp_path, env=os.environ, log=log)
        try:
            broker.until("mosquitto version .* running")
            broker.ctrl_c()
            assert broker.ended() == 0
        finally:
            broker.kill()
    assert "listen socket on port 8883" in broker.shown


def test_the_settings_of_the_inventory_are_taken(tmp_path: Path) -> None:
    inventory = yaml.safe_load((DEPLOY / "ansible/inventory.example.yml").read_text())
    for group in inventory["fedagent"]["children"].values():
        for host in group["hosts"].values():
            settings = {**host["fedagent_settings"], "data_dir": str(tmp_path)}
            assert settings.pop("join", "STRING") == "STRING"
            launch.check(group["vars"]["fedagent_role"], settings)
