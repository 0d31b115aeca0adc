"""Coming back to a site after a long time: renewed, forgotten, revoked, or nobody there."""

import asyncio
import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagent_node.envelope import EnvelopeError
from fedagent_node.errors import JoinError
from fedagent_node.site import credentials, enrolling, membership
from fedagent_node.site.credentials import Credentials, load_credentials, read_joined, store_crl
from fedagent_node.site.enrolling import Admitted, ask, renew
from fedagent_node.site.membership import Membership
from fedagent_node.site.reading import read_certificate, read_crl
from tests.coordinator.test_join_service import Field, serving
from tests.fakes.site import joined_at


async def member(made: Field, *, days: float = 30.0) -> Path:
    """Return the directory of a device that joined, with a certificate of so many days."""
    device = made.invited()
    found = await ask(made.place, device)
    assert isinstance(found, Admitted)
    folder = made.folder / "kitchen"
    own = made.home.authority.issue(device.identity.public_bytes, "agent", days, now=made.now)
    joined_at(folder, device.identity, own, found.ca_der, made.place, name="kitchen")
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
        assert (told.name, told.broker_port) == ("kitchen", 7000)


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
        await made.service.listener.close()
        with pytest.raises(JoinError, match="does not answer"):
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


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("days_ahead", [0, 0.3, 8, -8, 25, -400, 1100, 3652])
async def test_a_wrong_clock_neither_renews_in_a_loop_nor_shuts_a_device_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    days_ahead: float,
    *,
    later: bool,
) -> None:
    """It is wrong when the role starts, or is set wrong in the midst of its work."""
    days, asked, taken, set_at = 25.0, list[float](), list[object](), 5 * DAY_S
    async with serving(tmp_path) as made:
        begun, looked = made.now, [made.now]

        def ahead() -> float:
            wrong = not later or made.now >= begun + set_at
            return days_ahead * DAY_S if wrong else 0.0

        shown = SimpleNamespace(
            time=lambda: made.now + ahead(),
            monotonic=lambda: made.now - begun + 77.0,
            strftime=time.strftime,
            gmtime=time.gmtime,
        )
        for module in (membership, enrolling, credentials):
            monkeypatch.setattr(module, "time", shown)
        folder = await member(made)
        authority, device = made.home.authority, Membership.of(folder)
        edge = made.device("edge").identity
        assert device is not None

        async def changed(revoked: frozenset[str]) -> None:
            taken.append(revoked)

        device.on_change = changed

        async def asks() -> Credentials:
            asked.append(made.now)
            if len(asked) == 1:
                raise JoinError("unreachable")
            return await renew(folder, made.device().identity)

        async def sleep(seconds: float) -> None:
            made.now += seconds
            if made.now > begun + days * DAY_S:
                raise asyncio.CancelledError
            if made.now - looked[-1] < DAY_S / 2:
                return
            looked.append(made.now)
            held = read_certificate(device.credentials.certificate.der, authority.der, now=made.now)
            assert made.now < held.renew_at + DAY_S, "the others let it in"
            if len(asked) > 1:
                for age in (0.1, 19, 29):  # of who is a member; and of who was one
                    peer = authority.issue(edge.public_bytes, "edge", now=made.now - age * DAY_S)
                    device.read(peer.der)
                assert device.now() == pytest.approx(made.now, abs=1.0)
                flags = device.client_context().verify_flags
                wrong = abs(ahead()) > 3600
                assert bool(flags & membership.NO_CHECK_TIME) == wrong
                with pytest.raises(EnvelopeError, match="expired"):
                    device.read(authority.issue(edge.public_bytes, "edge", 1, now=0.0).der)

        monkeypatch.setattr(membership, "LOOK_S", 3600.0)  # as seldom as it matters in 25 days
        monkeypatch.setattr(membership, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(membership, "in_step", sleep)
        with pytest.raises(asyncio.CancelledError):
            await device.keep(asks)
        assert 1 <= len(taken) <= 2, "after 20 days; the first one was another than the site knows"
        assert all(b - a >= 3600 for a, b in itertools.pairwise(asked[4:]))
        (one,) = made.enrolment.members(now=made.now)
        assert abs(one.ahead_s - days_ahead * DAY_S) < 1
        assert ("set it (timedatectl" in caplog.text) == (days_ahead != 0)
