"""Certificates: what is issued is read back, and nothing else is."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.errors import CredentialsError
from fedagent_node.site import MAX_DER_BYTES
from fedagent_node.site.authority import DAYS, Authority
from fedagent_node.site.certificates import (
    ROLES,
    CertificateError,
    Role,
    judged_time,
)
from fedagent_node.site.reading import read_certificate, read_crl

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("ca"), "hall", now=NOW)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create(tmp_path_factory.mktemp("device"))


@pytest.mark.parametrize("role", ROLES)
def test_what_is_issued_is_read_back(authority: Authority, device: Identity, role: Role) -> None:
    issued = authority.issue(device.public_bytes, role, now=NOW)
    read = read_certificate(issued.der, authority.der, now=NOW + 5)
    assert read == issued
    assert (read.id, read.role, read.site) == (device.id, role, "hall")
    assert read.name == f"{role[0]}/{device.id}"
    assert read.not_after == NOW + 86_400 * DAYS
    assert NOW + 86_400 * 19 < read.renew_at < NOW + 86_400 * 21
    assert len(issued.der) < 600


def refused(der: bytes, authority: Authority, now: float | None = NOW + 5) -> str:
    with pytest.raises(CertificateError) as caught:
        read_certificate(der, authority.der, now=now)
    return caught.value.reason


def test_times_are_judged_unless_the_clock_is_unknown(
    authority: Authority, device: Identity
) -> None:
    issued = authority.issue(device.public_bytes, "agent", now=NOW)
    assert refused(issued.der, authority, NOW - 7200) == "not_yet"
    assert refused(issued.der, authority, NOW + 86_400 * 31) == "expired"
    assert read_certificate(issued.der, authority.der, now=None) == issued
    assert judged_time(issued, lambda: 0.0) is None
    assert judged_time(issued, lambda: NOW) == NOW


def test_another_authority_of_the_same_name_is_no_authority(
    authority: Authority, device: Identity, tmp_path: Path
) -> None:
    rogue = Authority.create(tmp_path, "hall", now=NOW)
    assert refused(rogue.issue(device.public_bytes, "agent", now=NOW).der, authority) == "wrong_ca"
    posing = replace(rogue, der=authority.der)  # the right issuer's name, another key
    with pytest.raises(CertificateError):
        posing.issue(device.public_bytes, "agent", now=NOW)


def test_an_id_is_that_of_its_key_whoever_signs(
    authority: Authority, device: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedagent_node.site.authority.identity_of", lambda _public: "0" * 32)
    with pytest.raises(CertificateError) as caught:
        authority.issue(device.public_bytes, "agent", now=NOW)
    assert caught.value.reason == "malformed"


@given(where=st.integers(0, 500), bit=st.integers(0, 7))
def test_no_flipped_bit_is_overlooked(
    authority: Authority, device: Identity, where: int, bit: int
) -> None:
    der = bytearray(authority.issue(device.public_bytes, "edge", now=NOW).der)
    der[where % len(der)] ^= 1 << bit
    assert refused(bytes(der), authority) in {"malformed", "wrong_ca"}


def test_a_certificate_has_one_encoding(authority: Authority) -> None:
    """Bits left over after the signature's last octet are no part of what is signed."""
    for seed in range(8):
        identity = Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))
        der = bytearray(
            authority.issue(identity.public_key().public_bytes_raw(), "edge", now=NOW).der
        )
        der[-65] = 1
        assert refused(bytes(der), authority) == "malformed"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_typed_error(authority: Authority, data: bytes) -> None:
    assert refused(data, authority) == "malformed"
    with pytest.raises(CertificateError):
        read_crl(data, authority.der)


def test_more_than_a_certificate_is_not_even_parsed(authority: Authority) -> None:
    assert refused(authority.der.ljust(MAX_DER_BYTES + 1), authority) == "malformed"


def test_revoked_serials_are_read_back(authority: Authority, tmp_path: Path) -> None:
    pem = authority.crl({5, 1 << 150}, 7, now=NOW)
    found = read_crl(pem, authority.der)
    assert found.number == 7
    assert found.serials == {5, 1 << 150}
    rogue = Authority.create(tmp_path, "hall", now=NOW)
    with pytest.raises(CertificateError) as caught:
        read_crl(rogue.crl({5}, 8, now=NOW), authority.der)
    assert caught.value.reason == "wrong_ca"


def test_a_list_of_the_revoked_names_who_is_out_with_any_certificate(
    authority: Authority, device: Identity
) -> None:
    pem = authority.crl({5}, 7, ids=[device.id, "f" * 32], now=NOW)
    found = read_crl(pem, authority.der)
    assert found.ids == {device.id, "f" * 32}
    assert found.has(authority.issue(device.public_bytes, "agent", now=NOW))
    assert read_crl(authority.crl({5}, 7, now=NOW), authority.der).ids == frozenset()


def test_an_authority_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "site", "hall")
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "site").iterdir())
    loaded = Authority.load(tmp_path / "site")
    assert (loaded.der, loaded.site) == (made.der, "hall")
    Authority.create(tmp_path / "other", "hall")
    (tmp_path / "other" / "ca.pem").replace(tmp_path / "site" / "ca.pem")
    with pytest.raises(CredentialsError, match="does not belong"):
        Authority.load(tmp_path / "site")
    with pytest.raises(CredentialsError):
        Authority.load(tmp_path / "nowhere")
