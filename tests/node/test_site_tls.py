"""TLS between members of a site, over both brokers: who is let in, and what others are told."""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.errors import JoinError, LinkError, SettingError
from fedagent_node.network import Cover
from fedagent_node.site.certificates import RevocationList
from fedagent_node.site.membership import Membership
from tests.fakes.links import Peer, broker, eventually
from tests.fakes.site import Members, ident

DAY_S = 86_400.0
ADDRESS = BrokerAddress("127.0.0.1", 1, "mqtts")


@pytest.fixture(scope="module")
def edge(home: Members) -> Membership:
    return home.member("edge", "edge")


async def test_certificates_and_scheme_must_agree(tmp_path: Path, edge: Membership) -> None:
    gone = replace(edge.files, ca=tmp_path / "none.pem")
    with pytest.raises(LinkError, match="needs certificates"):
        await Peer(ADDRESS, "one").link.start()
    with pytest.raises(LinkError, match="takes no certificates"):
        await Peer(replace(ADDRESS, scheme="mqtt"), "one", tls=edge.files).link.start()
    with pytest.raises(SettingError, match=r"none\.pem"):
        await Peer(ADDRESS, "one", tls=gone).link.start()


@dataclass
class Trusting:
    """A client that takes any host of the authority of its files; without files any broker."""

    files: TlsFiles | None = None

    def client_context(self) -> ssl.SSLContext:
        side = ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side) if self.files is None else self.files.loaded(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE if self.files is None else ssl.CERT_REQUIRED
        return context

    def check_peer(self, peer: socket.socket) -> None:
        """Take anybody."""


async def test_who_may_not_come_in_is_told_why_and_what_to_do(
    kind: str, tmp_path: Path, home: Members
) -> None:
    gone = home.member("gone", "agent")
    edge = home.member("strict", "edge")
    home.revoke("strict", gone)
    stranger = Members(tmp_path / "stranger").member("agent", "agent")
    wrong_ca = replace(
        stranger.files, ca=edge.files.ca, crl=edge.files.crl
    )  # else it would leave by itself
    late = home.member("late", "agent", days=1, now=time.time() - 2 * DAY_S)
    early = home.member("early", "agent", now=time.time() + 2 * DAY_S)
    covers: dict[str, tuple[Cover, str]] = {
        "no_certificate": (Trusting(), "join again with a new invitation"),
        "expired": (late.towards("edge"), "it is renewed once the coordinator can be reached"),
        "revoked": (gone.towards("edge"), JoinError("revoked").hint),
        "wrong_ca": (Trusting(wrong_ca), "check --site, or join this site"),
        "not_yet_valid": (early.towards("edge"), "set the clocks of both machines"),
    }
    async with broker(kind, tmp_path, tls=edge.files) as b:
        peers = {name: Peer(b.address, name, tls=cover) for name, (cover, _) in covers.items()}
        await asyncio.gather(*(stays_out(one) for one in peers.values()))
    for name, one in peers.items():
        assert one.link.counters[f"tls_{name}"], (name, one.link.last_error)
        assert covers[name][1] in one.link.last_error


async def test_a_broker_that_is_not_the_announced_one_gets_no_byte(
    tmp_path: Path, home: Members, edge: Membership
) -> None:
    agent = home.member("agent", "agent")
    other_site = Members(tmp_path / "other", "other")
    late = home.member("late-edge", "edge", days=1, now=time.time() - 2 * DAY_S)
    gone = home.member("gone-edge", "edge")
    home.revoke("agent", gone)
    again = home.member("again", "edge")
    agent.list = RevocationList(
        1, frozenset(), frozenset({ident(again)})
    )  # with a certificate that is on no list
    assert await received_by(again, agent.towards("edge"), "revoked") == b""
    servers = {
        "wrong_ca": other_site.member("edge", "edge"),
        "wrong_role": home.member("posing", "agent"),
        "expired": late,
        "revoked": gone,
        "other_id": home.member("second", "edge"),
    }
    for reason, server in servers.items():
        got = await received_by(server, agent.towards("edge", ids=lambda: [ident(edge)]), reason)
        assert got == b"", reason
    coordinator = home.member("coordinator", "coordinator")
    assert await received_by(coordinator, agent.towards("edge"), "wrong_role") == b""
    assert await received_by(edge, agent.towards("edge"), "") != b""


async def received_by(server: Membership, cover: Cover, reason: str) -> bytes:
    """Return what a link sent to a server before it gave up for this reason."""
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.read(100))
        writer.close()

    context = server.files.server_context()
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        one = Peer(replace(ADDRESS, port=port), "one", tls=cover)
        await stays_out(one)
    if reason:
        assert one.link.counters[f"tls_{reason}"], (reason, one.link.last_error)
    return bytes(got)


async def stays_out(one: Peer) -> None:
    await one.link.start()
    try:
        await eventually(lambda: bool(one.link.last_error))
        assert not one.states
        assert one.link.counters["connects"] == 0
    finally:
        await one.link.stop()
