"""No role speaks beyond this machine in the clear unless it was allowed to."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_edge.config import EdgeConfig
from fedagent_edge.daemon import EdgeDaemon
from fedagent_node.address import BrokerAddress
from fedagent_node.driver import Driver
from fedagent_node.errors import SettingError
from fedagent_node.settings import NodeConfig
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
    ("config", "setting"),
    [
        (CoordinatorConfig, {"recipe": str(RECIPE), "broker": f"mqtt://{FAR}"}),
        (EdgeConfig, {"coordinator": FAR}),
        (AgentConfig, {"stream": "digits", "edges": [FAR]}),
    ],
)
def test_every_role_refuses_to_start(config: type[NodeConfig], setting: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=f"{FAR}.*--insecure"):
        config.load(json.dumps({"data_dir": "d", **setting}), {})


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
