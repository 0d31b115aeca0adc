"""Whom a role takes for a member of its site in a masked round."""

from pathlib import Path

import pytest

from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.site import credentials as site_members
from fedagent_node.site.authority import Authority
from fedagent_node.site.credentials import Joined, store_credentials, store_crl
from fedagent_protocol.messages import MemberKeys


def keys_of(who: Identity, certificate: bytes) -> MemberKeys:
    return MemberKeys(
        identity=who.public_bytes,
        mask=bytes(32),
        seal=bytes(32),
        signature=bytes(64),
        certificate=certificate,
    )


def identity(folder: Path) -> Identity:
    folder.mkdir()
    return load_or_create(folder)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "hall")


def test_agents_of_its_site_alone_pass(tmp_path: Path, authority: Authority) -> None:
    edge, agent, other = (identity(tmp_path / name) for name in ("edge", "agent", "other"))
    mine = authority.issue(edge.public_bytes, "edge")
    joined = Joined(site="hall", fingerprint="0" * 64)
    store_credentials(tmp_path / "edge", edge, mine, authority.der, joined)
    passes = site_members.members_of(tmp_path / "edge")
    rogue = Authority.create(tmp_path / "rogue", "hall")
    good = authority.issue(agent.public_bytes, "agent").der
    assert passes(agent.id, keys_of(agent, good))
    assert not passes(other.id, keys_of(other, good))
    assert not passes(agent.id, keys_of(agent, b""))
    assert not passes(agent.id, keys_of(agent, rogue.issue(agent.public_bytes, "agent").der))
    assert not passes(agent.id, keys_of(agent, authority.issue(agent.public_bytes, "edge").der))


def test_a_revoked_agent_is_out_with_every_certificate(
    tmp_path: Path, authority: Authority
) -> None:
    edge, agent, other = (identity(tmp_path / name) for name in ("edge", "agent", "other"))
    mine = authority.issue(edge.public_bytes, "edge")
    joined = Joined(site="hall", fingerprint="0" * 64)
    store_credentials(tmp_path / "edge", edge, mine, authority.der, joined)
    store_crl(tmp_path / "edge", authority.crl((), 1, ids=[agent.id]))
    passes = site_members.members_of(tmp_path / "edge")
    again = authority.issue(agent.public_bytes, "agent").der
    assert not passes(agent.id, keys_of(agent, again))
    assert passes(other.id, keys_of(other, authority.issue(other.public_bytes, "agent").der))


def test_without_a_site_everybody_passes(tmp_path: Path) -> None:
    agent = identity(tmp_path / "agent")
    passes = site_members.members_of(tmp_path / "edge")
    assert passes(agent.id, keys_of(agent, b""))
