"""No role speaks beyond this machine in the clear unless it was allowed to."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fedagent_edge.config import EdgeConfig
from fedagent_edge.daemon import EdgeDaemon
from fedagent_node.address import BrokerAddress
from fedagent_node.driver import Driver
from fedagent_node.errors import SettingError
from fedagent_node.shell import Shell
from tests.fakes.links import Peer
from tests.fakes.site import Members

FAR = "192.0.2.1:1883"
RECIPE = Path(__file__).parents[3] / "deploy" / "recipes" / "demo.toml"


def test_a_link_refuses_before_it_connects() -> None:
    for address in (FAR, "mqtt://broker.lan", "[2001:db8::1]:1883"):
        with pytest.raises(SettingError, match="--insecure"):
            Peer(BrokerAddress.parse(address), "one")
        Peer(BrokerAddress.parse(address), "one", insecure=True)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "mqtts://broker.lan"):
        Peer(BrokerAddress.parse(address), "one")


@pytest.mark.parametrize(
    ("role", "setting"),
    [
        ("coordinator", {"recipe": str(RECIPE), "broker": f"mqtt://{FAR}"}),
        ("edge", {"coordinator": FAR}),
        ("agent", {"stream": "digits", "edges": [FAR]}),
    ],
)
def test_every_role_refuses_to_start(tmp_path: Path, role: str, setting: dict[str, object]) -> None:
    config = {"data_dir": str(tmp_path / "d"), "discovery": "off", **setting}
    ended = subprocess.run(
        [sys.executable, "-m", f"fedagent_{role}", "--config", json.dumps(config)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 2
    assert FAR in ended.stderr
    assert "--insecure" in ended.stderr
    assert not (tmp_path / "d").exists()


async def test_an_edge_does_not_follow_an_advert_into_the_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = EdgeDaemon(EdgeConfig(data_dir=str(tmp_path)))
    daemon._shell.id = "e"
    daemon._shell.driver = cast("Driver", SimpleNamespace(core=SimpleNamespace(urgent=bool)))
    for _ in range(3):
        await daemon._dial(BrokerAddress.parse(FAR))
    assert not daemon._shell.links
    (said,) = caplog.messages
    assert FAR in said
    assert "--insecure" in said


@pytest.mark.parametrize(("insecure", "enrolled", "said"), [(1, 1, 1), (1, 0, 0), (0, 1, 0)])
def test_insecure_beside_a_certificate_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, insecure: int, enrolled: int, said: int
) -> None:
    if enrolled:
        Members(tmp_path, "default").member("edge", "edge")
    config = EdgeConfig(data_dir=str(tmp_path / "edge"), insecure=bool(insecure))
    Shell(config, fatal=(), show=lambda _: None).identify()
    assert (
        caplog.text.count("--insecure is given although there is the certificate of site default")
        == said
    )
