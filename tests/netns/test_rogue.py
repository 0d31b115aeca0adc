"""A neighbour who announces himself under the name of the edge gets no byte, and stops nobody."""

from pathlib import Path

import pytest

from fedagent_node.site.credentials import load_credentials
from tests.documents import machines
from tests.documents.machines import Machine, Terminal, lan, why_not
from tests.fakes.site import Members

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

ROGUE = """
import asyncio, sys
from pathlib import Path
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert, service_type, to_txt
from fedagent_node.site.membership import Membership
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
from fedagent_protocol.messages import PROTOCOL_VERSION
folder, ident, own = sys.argv[1:]
async def serve(reader, writer):
    print("application bytes:", await reader.read(100), flush=True)
    writer.close()
async def main():
    context = Membership.of(Path(folder)).files.server_context()
    context.verify_mode = 0
    server = await asyncio.start_server(serve, own, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    advert = Advert("edge", ident, "default", BrokerAddress(own, port, "mqtts"), PROTOCOL_VERSION)
    kind = service_type("edge")
    info = AsyncServiceInfo(
        kind, f"{ident}.{kind}", port=port, properties=to_txt(advert, external=False),
        server=f"fedagent-{ident}.local.", parsed_addresses=[own],
    )
    zeroconf = AsyncZeroconf(interfaces=[own])
    await zeroconf.async_register_service(info, cooperating_responders=True)
    print("rogue announced", flush=True)
    while True:
        await asyncio.sleep(0.5)
        await zeroconf.async_update_service(info)
asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_rogue_of_the_same_name_gets_no_byte_and_the_agent_joins_the_real_edge(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "PATIENCE_S", 40.0)
    members = Members(tmp_path / "site", "default")
    members.member("edge", "edge")
    members.member("agent", "agent")
    Members(tmp_path / "forged", "default").member("edge", "edge")
    own = load_credentials(tmp_path / "site" / "edge")
    assert own is not None
    ident = own.certificate.id

    def rogue(machine: Machine) -> Terminal:
        forged = str(tmp_path / "forged" / "edge")
        terminal = machine.runs("a rogue", ROGUE, forged, ident, "192.168.1.66")
        terminal.until("rogue announced")
        return terminal

    with lan(tmp_path, "192.168.1.10", "192.168.1.20", "192.168.1.66") as (box, device, other):
        edge_start = f"fedagent edge start --listen 0.0.0.0 --data-dir {tmp_path}/site/edge"
        start = f"fedagent start --stream digits --data-dir {tmp_path}/site/agent"
        if when == "before":
            bad = rogue(other)
            agent = device.opens(start)
            agent.until("nothing answers|is not used|no connection|is refused")
            box.opens(edge_start).until("edge ready")
        elif when == "during":
            box.opens(edge_start).until("edge ready")
            bad = rogue(other)
            agent = device.opens(start)
        else:
            box.opens(edge_start).until("edge ready")
            agent = device.opens(start)
            agent.until("joined edge")
            bad = rogue(other)
            agent.ctrl_c()
            agent.ended()
            agent = device.opens(start)
        agent.until(rf"joined edge {ident[:8]}")
        assert "application bytes" not in bad.shown
