"""What a role holds of its site, on disk."""

from pathlib import Path

import pytest

from fedagent_node.data_dir import load_or_create
from fedagent_node.errors import CredentialsError
from fedagent_node.site.authority import Authority
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    Joined,
    load_credentials,
    read_joined,
    store_credentials,
    store_crl,
)


def joined(authority: Authority, folder: Path) -> Joined:
    identity = load_or_create(folder)
    told = Joined(site="hall", fingerprint=fingerprint(authority.der), services=("10.0.0.1:8871",))
    certificate = authority.issue(identity.public_bytes, "agent")
    store_credentials(folder, identity, certificate, authority.der, told)
    return told


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "hall")


def test_what_is_stored_is_loaded(authority: Authority, tmp_path: Path) -> None:
    device = tmp_path / "device"
    assert load_credentials(device) is None
    told = joined(authority, device)
    found = load_credentials(device)
    assert found is not None
    assert found.certificate.role == "agent"
    assert found.ca_der == authority.der
    assert read_joined(device) == told
    assert found.revocations().serials == frozenset()
    store_crl(device, authority.crl({3}, 1))
    assert found.revocations().serials == {3}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (device / "site").iterdir())


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
@pytest.mark.parametrize("damage", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA"])
def test_damage_is_an_error_with_the_hint(
    authority: Authority, tmp_path: Path, name: str, damage: bytes | None
) -> None:
    joined(authority, tmp_path)
    path = tmp_path / "site" / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    if name == "cert.pem" and damage is None:
        assert load_credentials(tmp_path) is None, "a join that did not end is none"
    elif name == "key.pem" and damage is not None:
        assert load_credentials(tmp_path) is not None, "the TLS library says so"
    else:
        with pytest.raises(CredentialsError, match="join again"):
            load_credentials(tmp_path)
