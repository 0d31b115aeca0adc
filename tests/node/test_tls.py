"""Certificates on both kinds of broker: with ours in, without it out."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedagent_node.address import BrokerAddress, TlsFiles
from fedagent_node.errors import LinkError, SettingError
from tests.fakes.links import Peer, broker, eventually, peer

from .conftest import Pki


async def test_a_certificate_of_our_authority_opens(kind: str, tmp_path: Path, pki: Pki) -> None:
    async with broker(kind, tmp_path, tls=pki.broker) as b:
        assert b.address.scheme == "mqtts"
        async with peer(b.address, "one", tls=pki.client) as one:
            await one.link.subscribe("t")
            assert one.link.publish("t", bytes(600_000))
            await one.until(lambda: bool(one.heard))
            assert len(one.heard[0].payload) == 600_000


@pytest.mark.parametrize("who", ["wrong_ca", "expired"])
async def test_other_certificates_are_refused(
    kind: str, tmp_path: Path, pki: Pki, who: str
) -> None:
    files: TlsFiles = getattr(pki, who)
    async with broker(kind, tmp_path, tls=pki.broker) as b:
        await _stays_out(Peer(b.address, "one", tls=files))


async def test_certificates_and_scheme_must_agree(tmp_path: Path, pki: Pki) -> None:
    gone = replace(pki.client, ca=tmp_path / "none.pem")
    with pytest.raises(LinkError, match="needs certificates"):
        await Peer(BrokerAddress("h", 1, "mqtts"), "one").link.start()
    with pytest.raises(LinkError, match="takes no certificates"):
        await Peer(BrokerAddress("localhost", 1), "one", tls=pki.client).link.start()
    with pytest.raises(SettingError, match=r"none\.pem"):
        await Peer(BrokerAddress("h", 1, "mqtts"), "one", tls=gone).link.start()


async def _stays_out(one: Peer) -> None:
    await one.link.start()
    try:
        await eventually(lambda: bool(one.link.last_error))
        assert not one.link.connected
        assert one.states == []
        assert one.link.counters["connects"] == 0
    finally:
        await one.link.stop()
