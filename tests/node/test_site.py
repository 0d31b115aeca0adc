"""A site: what its authority signs is read back and nothing else; what a role holds; who is out."""

import base64
import itertools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node.data_dir import Identity
from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.errors import CredentialsError
from fedagent_node.site import MAX_DER_BYTES
from fedagent_node.site.authority import DAYS, Authority
from fedagent_node.site.certificates import ROLES, Role, fingerprint
from fedagent_node.site.credentials import (
    Joined,
    load_credentials,
    members_of,
    read_joined,
    store_crl,
)
from fedagent_node.site.membership import Membership
from fedagent_node.site.reading import read_certificate, read_crl
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MemberKeys
from tests.fakes.site import Members
from tests.fakes.voices import identity

NOW = 1_800_000_000.0
DAY_S = 86_400.0
DEVICE = identity("device")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("ca"), "hall")


@pytest.fixture
def home(tmp_path: Path) -> Members:
    return Members(tmp_path)


# ------------------------------------------------------------------ certificates


@pytest.mark.parametrize("role", ROLES)
def test_what_is_issued_is_read_back(authority: Authority, role: Role) -> None:
    issued = authority.issue(DEVICE.public_bytes, role, now=NOW)
    read = read_certificate(issued.der, authority.der, now=NOW + 5)
    assert read == issued
    assert (read.id, read.role, read.site) == (DEVICE.id, role, "hall")
    assert read.name == f"{role[0]}/{DEVICE.id}"
    assert read.not_after == NOW + DAY_S * DAYS
    assert NOW + DAY_S * 19 < read.renew_at < NOW + DAY_S * 21


def refused(der: bytes, authority: Authority, now: float | None = NOW + 5) -> str:
    with pytest.raises(ProtocolError) as caught:
        read_certificate(der, authority.der, now=now)
    return caught.value.reason


def test_times_are_judged_unless_the_clock_is_unknown(authority: Authority) -> None:
    issued = authority.issue(DEVICE.public_bytes, "agent", now=NOW)
    assert refused(issued.der, authority, NOW - 7200) == "not_yet"
    assert refused(issued.der, authority, NOW + DAY_S * 31) == "expired"
    assert read_certificate(issued.der, authority.der, now=None) == issued


def test_another_authority_of_the_same_name_is_no_authority(
    authority: Authority, tmp_path: Path
) -> None:
    rogue = Authority.create(tmp_path, "hall")
    assert refused(rogue.issue(DEVICE.public_bytes, "agent", now=NOW).der, authority) == "wrong_ca"
    posing = replace(rogue, der=authority.der)  # the right issuer's name, another key
    with pytest.raises(ProtocolError):
        posing.issue(DEVICE.public_bytes, "agent", now=NOW)
    with pytest.raises(ProtocolError) as caught:
        read_crl(rogue.crl({5}, 8, now=NOW), authority.der)
    assert caught.value.reason == "wrong_ca"


@given(where=st.integers(0, 500), bit=st.integers(0, 7))
def test_no_flipped_bit_is_overlooked(authority: Authority, where: int, bit: int) -> None:
    der = bytearray(authority.issue(DEVICE.public_bytes, "edge", now=NOW).der)
    der[where % len(der)] ^= 1 << bit
    assert refused(bytes(der), authority) in {"malformed", "wrong_ca"}


def test_a_certificate_has_one_encoding(authority: Authority) -> None:
    """Bits left over after the signature's last octet are no part of what is signed."""
    der = bytearray(authority.issue(DEVICE.public_bytes, "edge", now=NOW).der)
    der[-65] = 1
    assert refused(bytes(der), authority) == "malformed"


def test_an_extension_that_comes_twice_is_refused(authority: Authority) -> None:
    """As an authority that somebody made up may sign it, for a device that joins by a code."""
    der = authority.issue(DEVICE.public_bytes, "coordinator", now=NOW).der
    signed = x509.load_der_x509_certificate(der).tbs_certificate_bytes
    twice = signed.replace(b"\x06\x03\x55\x1d\x23", b"\x06\x03\x55\x1d\x0e")
    made = der.replace(signed, twice)[:-64] + authority._key.sign(twice)
    assert refused(made, authority) == "malformed"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_typed_error(authority: Authority, data: bytes) -> None:
    assert refused(data, authority) == "malformed"
    assert refused(authority.der.ljust(MAX_DER_BYTES + 1), authority) == "malformed"
    with pytest.raises(ProtocolError):
        read_crl(data, authority.der)


def test_a_list_of_the_revoked_names_who_is_out_with_any_certificate(authority: Authority) -> None:
    pem = authority.crl({5, 1 << 150}, 7, ids=[DEVICE.id, "f" * 32], now=NOW)
    found = read_crl(pem, authority.der)
    assert (found.number, found.serials) == (7, frozenset({5, 1 << 150}))
    assert found.ids == {DEVICE.id, "f" * 32}
    assert found.has(authority.issue(DEVICE.public_bytes, "agent", now=NOW))
    assert read_crl(authority.crl({5}, 7, now=NOW), authority.der).ids == frozenset()


def test_a_flipped_bit_changes_no_list(authority: Authority) -> None:
    pem = authority.crl({5}, 7, ids=[DEVICE.id], now=NOW)
    whole, (head, *lines, foot) = read_crl(pem, authority.der), pem.splitlines()
    der = base64.b64decode(b"".join(lines))
    for where, bit in itertools.product(range(len(der)), range(8)):
        changed = bytearray(der)
        changed[where] ^= 1 << bit
        with suppress(ProtocolError):  # but for bits left over, which nobody reads
            read = read_crl(b"\n".join([head, base64.b64encode(changed), foot]), authority.der)
            assert read == whole


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


# ------------------------------------------------------------- what a role holds


def test_what_is_stored_is_loaded(home: Members) -> None:
    assert load_credentials(home.folder / "device") is None
    home.member("device", "agent")
    device = home.folder / "device"
    found = load_credentials(device)
    assert found is not None
    assert (found.certificate.role, found.ca_der) == ("agent", home.authority.der)
    assert read_joined(device) == Joined(site="home", fingerprint=fingerprint(found.ca_der))
    store_crl(device, home.authority.crl({3}, 1))
    assert found.revocations().serials == {3}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (device / "site").iterdir())


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
@pytest.mark.parametrize("damage", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA"])
def test_damage_is_an_error_with_the_hint(home: Members, name: str, damage: bytes | None) -> None:
    home.member("device", "agent")
    device = home.folder / "device"
    path = device / "site" / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    if name == "cert.pem" and damage is None:
        assert load_credentials(device) is None, "a join that did not end is none"
    elif name == "key.pem" and damage is not None:
        assert load_credentials(device) is not None, "the TLS library says so"
    else:
        with pytest.raises(CredentialsError, match="join again"):
            load_credentials(device)


# --------------------------------------------------------- members of a masked round


def keys_of(who: Identity, certificate: bytes) -> MemberKeys:
    others = {"mask": bytes(32), "seal": bytes(32), "signature": bytes(64)}
    return MemberKeys(identity=who.public_bytes, certificate=certificate, **others)


def test_agents_of_its_site_alone_pass(home: Members, tmp_path: Path) -> None:
    agent, other, gone = map(identity, ("agent", "other", "gone"))

    def made(by: Authority, who: Identity, role: Role = "agent") -> MemberKeys:
        return keys_of(who, by.issue(who.public_bytes, role).der)

    assert members_of(home.folder / "edge")(agent.id, keys_of(agent, b"")), "there is no site"
    home.member("edge", "edge")
    store_crl(home.folder / "edge", home.authority.crl((), 1, ids=[gone.id]))
    passes = members_of(home.folder / "edge")
    rogue = Authority.create(tmp_path / "rogue", "home")
    assert passes(agent.id, made(home.authority, agent))
    assert not passes(gone.id, made(home.authority, gone)), "revoked, with any certificate"
    assert not passes(other.id, keys_of(other, made(home.authority, agent).certificate))
    assert not passes(agent.id, keys_of(agent, b""))
    assert not passes(agent.id, made(rogue, agent))
    assert not passes(agent.id, made(home.authority, agent, "edge"))


# ------------------------------------------------------------ while a role runs


def membership(home: Members, name: str) -> tuple[Membership, list[object]]:
    changes: list[object] = []

    async def changed(ids: frozenset[str]) -> None:
        changes.append(ids)

    member = home.member(name, "edge")
    member.on_change = changed
    return member, changes


def refusal(member: Membership, der: bytes) -> Refusal:
    with pytest.raises(EnvelopeError) as caught:
        member.read(der)
    return caught.value.detail


async def test_a_newer_list_of_this_authority_is_taken_once(home: Members, tmp_path: Path) -> None:
    member, changes = membership(home, "edge")
    thief = home.member("thief", "agent").credentials.certificate
    assert member.read(thief.der).id == thief.id
    newer = home.authority.crl([thief.serial], 1, ids=[thief.id])
    forged = Members(tmp_path / "other").authority.crl([thief.serial], 7)
    taken = [await member.take(pem) for pem in (forged, b"no list", newer, newer)]
    assert taken == [False, False, True, False]
    assert not await member.take(home.authority.crl([], 0))
    assert changes == [{thief.id}]
    assert refusal(member, thief.der) is Refusal.REVOKED
    again = Membership.of(home.folder / "edge")
    assert again is not None
    assert again.list.number == member.list.number == 1, "it is kept over a restart"


async def test_certificates_of_others_are_refused_with_the_reason(
    home: Members, tmp_path: Path
) -> None:
    member, _ = membership(home, "edge")
    foreign = Members(tmp_path / "other").member("x", "agent").credentials.certificate
    late = home.member("late", "agent", days=1, now=1e9).credentials.certificate
    assert refusal(member, foreign.der) is Refusal.NO_CERTIFICATE
    assert refusal(member, late.der) is Refusal.EXPIRED
    assert refusal(member, b"\x30\x00") is Refusal.NO_CERTIFICATE
