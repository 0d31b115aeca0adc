"""Where messages go: each to the edge's link, on the agent's own topic."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_agent.links import BrokerLinks
from fedagent_node.effects import Send
from fedagent_node.link import Link
from fedagent_node.shell import Shell
from fedagent_protocol import SOFTWARE, topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import EdgeBeacon, Hello
from fedagent_testbed.node import AtOnce
from tests.fakes.hand_edge import AGENT, EDGE, LINK, SITE, HandEdge
from tests.fakes.voices import read


@dataclass
class _Link:
    local_address: str = "192.168.1.7"
    sent: list[bytes] = field(default_factory=list)

    def publish(self, topic: str, payload: bytes, *, qos: int) -> bool:
        assert topics.parse(topic)
        assert qos == 1
        self.sent.append(payload)
        return True


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return HandEdge(tmp_path, name="kitchen")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(
        AgentConfig(data_dir=str(tmp_path), stream="digits"), fatal=(), show=lambda _: None
    )
    made.identify()
    return made


def test_the_edge_hears_software_and_address(edge: HandEdge, shell: Shell) -> None:
    links, link = BrokerLinks(shell, edge.core, SITE), _Link()
    shell.links[LINK] = cast("Link", link)
    shell.drive(edge.core, edge.store, links.route, jobs=AtOnce(), change=links.change)
    for send in edge.jobs(Send, edge.say(EdgeBeacon(edge=EDGE))):
        shell.send(send)
    (hello,) = link.sent
    expected = Hello(
        agent=AGENT, software=SOFTWARE, name="kitchen", address="192.168.1.7", prepares=True
    )
    assert read(Direction.AGENT_TO_EDGE, hello) == expected
