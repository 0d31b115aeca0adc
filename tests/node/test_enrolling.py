"""Coming back to a site after a long time: renewed, forgotten, revoked, or nobody there."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagent_node.errors import JoinError, JoinUnreachableError
from fedagent_node.site import membership
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    Credentials,
    Joined,
    load_credentials,
    read_joined,
    store_credentials,
    store_crl,
)
from fedagent_node.site.enrolling import Admitted, ask, renew
from fedagent_node.site.membership import Membership
from fedagent_node.site.reading import read_certificate, read_crl
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
        held = load_credentials(folder)
        assert held is not None
        assert held.judged_time(made.now) == made.now, "a stolen one has expired as well"
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


DAY_S = 86_400.0


@pytest.mark.parametrize("ahead", [0.0, 1096 * DAY_S, -1096 * DAY_S, 15 * DAY_S])
async def test_a_wrong_clock_neither_renews_in_a_loop_nor_shuts_a_device_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ahead: float,
) -> None:
    days, asked, taken = 25.0, list[float](), list[object]()
    async with serving(tmp_path) as made:
        begun = made.now
        monkeypatch.setattr(time, "time", lambda: made.now + ahead)
        folder = await member(made)
        authority, device = made.home.authority, Membership.of(folder)
        edge = made.device("edge").identity
        assert device is not None

        async def changed(revoked: frozenset[str]) -> None:
            taken.append(revoked)

        device.on_change = changed
        over = asyncio.Event()

        async def asks() -> Credentials:
            asked.append(made.now)
            if len(asked) == 1:
                raise JoinUnreachableError("coordinator", "no answer")
            return await renew(folder, made.device().identity)

        async def sleep(seconds: float) -> None:
            made.now += seconds
            held = read_certificate(device.credentials.certificate.der, authority.der, now=made.now)
            assert made.now < held.renew_at + DAY_S, "the others let it in"
            peer = authority.issue(edge.public_bytes, "edge", now=made.now - 19 * DAY_S)
            if len(asked) > 1 or ahead < -30 * DAY_S:
                device.read(peer.der)
            if made.now > begun + days * DAY_S:
                over.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(membership, "LOOK_S", 3600.0)  # as seldom as it matters in 25 days
        monkeypatch.setattr(membership, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(membership, "in_step", sleep)
        keeping = asyncio.create_task(device.keep(asks))
        await over.wait()
        keeping.cancel()
        assert 1 <= len(taken) <= 2, "after 20 days; the first one was another than the site knows"
        wrong = abs(ahead) > 3600
        assert len(asked) <= (30 * days if wrong else 2)
        assert caplog.text.count("is not renewed yet") == 1
        (one,) = made.enrolment.members(now=made.now)
        assert abs(one.ahead_s - ahead) < 1
        assert ("set it (timedatectl" in caplog.text) == wrong
