"""What the command line revokes becomes a list that every member goes by, also after a restore."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from fedagent_coordinator.backup import restore
from fedagent_coordinator.revocation import watch_members
from fedagent_coordinator.site import Site
from fedagent_node.credentials import Joined, store_credentials
from fedagent_node.data_dir import load_or_create
from fedagent_node.effects import Revoked
from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.membership import Membership
from fedagent_node.site_tls import SiteTls
from tests.fakes.links import eventually
from tests.fakes.lost_site import Lost

if TYPE_CHECKING:
    from fedagent_node.shell import Shell


class Process:
    """What is used here of a `Shell`: a directory, its standing in the site, and a core."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.received: list[object] = []
        site = SiteTls.of(directory)
        assert site is not None
        self.membership = Membership(directory, site, {}, self._changed)

    async def _changed(self, revoked: frozenset[str]) -> None:
        self.cut = revoked

    def receive(self, *events: object) -> None:
        self.received += events

    async def take_revocations(self, crl: bytes, ids: Collection[str]) -> None:
        if await self.membership.take(crl, ids):
            self.receive(Revoked(self.membership.number, frozenset(ids), crl))

    def told(self) -> list[Revoked]:
        return [event for event in self.received if isinstance(event, Revoked)]


@asynccontextmanager
async def watching(site: Site) -> AsyncIterator[Process]:
    """Run what a coordinator does of its members."""
    process = Process(site.data_dir)
    watched = asyncio.create_task(watch_members(cast("Shell", process), site))
    try:
        yield process
    finally:
        watched.cancel()
        await asyncio.gather(watched, return_exceptions=True)


def device(lost: Lost, name: str = "porch") -> Process:
    """Return a member with its files."""
    lost.certify(name, at=time.time())
    folder, ca = lost.folder.parent / name, lost.site().authority.der
    joined = Joined(site="home", fingerprint="0" * 64)
    store_credentials(folder, load_or_create(folder), lost.held[name], ca, joined)
    return Process(folder)


async def test_on_another_machine_too_a_revoked_member_is_out_with_every_certificate(
    tmp_path: Path,
) -> None:
    lost = Lost.backed_up(tmp_path)
    other = device(lost)
    hall = lost.certify("hall", "edge", at=time.time())  # renewed since the backup
    shutil.rmtree(lost.folder)
    restore(lost.copy, lost.folder)
    lost.revoke(hall, at=time.time())
    async with watching(lost.site()) as coordinator:
        await eventually(lambda: any(one.ids for one in coordinator.told()))
    newest = coordinator.told()[-1]
    await other.take_revocations(newest.crl, ())
    for member in (coordinator.membership, other.membership, Process(other.directory).membership):
        with pytest.raises(EnvelopeError) as refused:
            member.read(lost.held["hall"].der)
        assert refused.value.refusal is Refusal.REVOKED
        assert (
            member.read(lost.held["porch"].der).id
            == other.membership.site.credentials.certificate.id
        )
    assert other.cut == {hall}, "the list says whom to leave, whoever handed it on"
