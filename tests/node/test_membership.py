"""A certificate is renewed in time; a list of the revoked is taken once, and only if it holds."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.errors import JoinUnreachableError
from fedagent_node.site.certificates import RENEW_AT
from fedagent_node.site.credentials import Credentials, load_credentials
from fedagent_node.site.membership import Membership
from tests.fakes.links import eventually
from tests.fakes.site import Members

DAY_S = 86_400.0


@pytest.fixture
def home(tmp_path: Path) -> Members:
    return Members(tmp_path)


def membership(home: Members, name: str, *, days: float = 30.0) -> tuple[Membership, list[object]]:
    changes: list[object] = []

    async def changed(ids: frozenset[str]) -> None:
        changes.append(ids)

    site = home.member(name, "edge", days=days)
    return Membership(home.folder / name, site, {}, changed), changes


async def test_a_newer_list_of_this_authority_is_taken_once(home: Members, tmp_path: Path) -> None:
    member, changes = membership(home, "edge")
    thief = home.member("thief", "agent").credentials.certificate
    assert member.read(thief.der).id == thief.id
    newer = home.authority.crl([thief.serial], 1, ids=[thief.id])
    forged = Members(tmp_path / "other").authority.crl([thief.serial], 7)
    assert not await member.take(forged)
    assert not await member.take(b"no list")
    assert await member.take(newer)
    assert not await member.take(newer)
    assert not await member.take(home.authority.crl([], 0))
    assert changes == [{thief.id}]
    assert member.number == 1
    with pytest.raises(EnvelopeError) as refused:
        member.read(thief.der)
    assert refused.value.refusal is Refusal.REVOKED
    again = Membership(home.folder / "edge", member.site, {}, member._on_change)
    assert again.number == 1, "it is kept over a restart"


async def test_certificates_of_others_are_refused_with_the_reason(
    home: Members, tmp_path: Path
) -> None:
    member, _ = membership(home, "edge")
    foreign = Members(tmp_path / "other").member("x", "agent").credentials.certificate
    late = home.member("late", "agent", days=1, now=1e9).credentials.certificate
    for der, reason in (
        (foreign.der, Refusal.NO_CERTIFICATE),
        (late.der, Refusal.EXPIRED),
        (b"\x30\x00", Refusal.NO_CERTIFICATE),
    ):
        with pytest.raises(EnvelopeError) as refused:
            member.read(der)
        assert refused.value.refusal is reason


def renewing(home: Members, name: str, days: float, failures: int) -> Callable[[], object]:
    tries = iter(range(failures))

    async def renew() -> Credentials:
        if next(tries, None) is not None:
            raise JoinUnreachableError("coordinator", "no answer")
        home.member(name, "edge", days=days)
        found = load_credentials(home.folder / name)
        assert found is not None
        return found

    return renew


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_certificate_is_renewed_before_its_end_although_nobody_answers_at_first(
    home: Members, failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    # X.509 knows whole seconds: a life of 6 is the shortest that has two thirds.
    days = 6 / DAY_S
    member, changes = membership(home, "edge", days=days)
    first = member.site.credentials.certificate
    assert first.renew_at < first.not_after - (1 - RENEW_AT)
    keeping = asyncio.create_task(member.keep(renewing(home, "edge", days, failures)))  # type: ignore[arg-type]  # a coroutine function
    try:
        await eventually(lambda: bool(changes))
    finally:
        keeping.cancel()
    second = member.site.credentials.certificate
    assert second.serial != first.serial
    assert second.not_before < first.not_after
    assert caplog.text.count("is not renewed yet") == bool(failures)
