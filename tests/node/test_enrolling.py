"""Coming back to a site after a long time: renewed, forgotten, revoked, or nobody there."""

from pathlib import Path

import pytest

from fedagent_node.errors import JoinError, JoinUnreachableError
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    Joined,
    load_credentials,
    read_joined,
    store_credentials,
    store_crl,
)
from fedagent_node.site.enrolling import Admitted, ask, renew
from fedagent_node.site.reading import read_crl
from tests.coordinator.test_join_service import Field, serving


async def member(made: Field, *, days: float = 30.0) -> Path:
    """Return the directory of a device that joined, with a certificate of so many days."""
    device = made.invited()
    found = await ask(made.place, device)
    assert isinstance(found, Admitted)
    folder = made.folder / "kitchen"
    mark = fingerprint(found.ca_der)
    told = Joined(site="hall", fingerprint=mark, services=(made.place,), name="kitchen")
    own = made.home.authority.issue(device.identity.public_bytes, "agent", days, now=made.now)
    store_credentials(folder, device.identity, own, found.ca_der, told)
    return folder


async def test_an_expired_certificate_is_renewed_and_the_key_stays(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        folder = await member(made)
        key = (folder / "site" / "key.pem").read_bytes()
        made.now += 90 * 86_400
        new = await renew(folder, made.device().identity)
        assert new.certificate.not_after == made.now + 30 * 86_400
        assert load_credentials(folder) == new
        assert (folder / "site" / "key.pem").read_bytes() == key
        told = read_joined(folder)
        assert told is not None
        assert told.name == "kitchen"


async def test_who_may_not_renew_keeps_what_it_has_and_is_told_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        folder = await member(made)
        before = load_credentials(folder)
        identity = made.device().identity
        made.enrolment.revoke(identity.id, now=made.now)
        with pytest.raises(JoinError, match="revoked"):
            await renew(folder, identity)
        made.enrolment._connection.execute("DELETE FROM members")
        with pytest.raises(JoinError, match="no longer knows this key"):
            await renew(folder, identity)
        await made.service.close()
        with pytest.raises(JoinUnreachableError):
            await renew(folder, identity)
        assert load_credentials(folder) == before


async def test_the_list_of_the_revoked_is_there_before_a_broker_starts(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        folder = await member(made)
        crl = folder / "site" / "crl.pem"
        assert not crl.exists()
        found = await renew(folder, made.device().identity)
        assert read_crl(crl.read_bytes(), found.ca_der).number == 0
        newer = made.home.authority.crl((7,), 1)
        store_crl(folder, newer)
        await renew(folder, made.device().identity)
        assert crl.read_bytes() == newer
