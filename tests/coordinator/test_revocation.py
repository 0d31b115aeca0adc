"""What the command line revokes becomes a list that every member goes by, also after a restore."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from msgspec import structs

from fedagent_coordinator.backup import restore
from fedagent_coordinator.site.enrolment import LISTS_SKIPPED, Enrolment
from fedagent_coordinator.site.standing import Site, learn_list, watch_members
from fedagent_node.data_dir import load_or_create
from fedagent_node.effects import Input, Revoked
from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.site.authority import Authority
from fedagent_node.site.certificates import RevocationList
from fedagent_node.site.membership import Membership
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from tests.fakes.coordinator_site import Site as Running
from tests.fakes.coordinator_site import recipe, toy_edges
from tests.fakes.links import eventually
from tests.fakes.lost_site import Lost
from tests.fakes.site import joined_at

if TYPE_CHECKING:
    from fedagent_node.shell import Shell


class Process:
    """What is used here of a `Shell`: a directory, its standing in the site, and a core."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.received: list[Input] = []
        found = Membership.of(directory)
        assert found is not None
        self.membership = found
        found.on_change = self._changed

    async def _changed(self, revoked: frozenset[str]) -> None:
        self.cut = revoked

    def receive(self, *events: Input) -> None:
        self.received += events

    async def take_revocations(self, crl: bytes) -> None:
        if await self.membership.take(crl):
            self.receive(Revoked(self.membership.list.number, self.membership.list.ids, crl))

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
    joined_at(folder, load_or_create(folder), lost.held[name], ca)
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
    await other.take_revocations(newest.crl)
    for member in (coordinator.membership, other.membership, Process(other.directory).membership):
        with pytest.raises(EnvelopeError) as refused:
            member.read(lost.held["hall"].der)
        assert refused.value.detail is Refusal.REVOKED
        assert member.read(lost.held["porch"].der).id == other.membership.credentials.certificate.id
    assert other.cut == {hall}, "the list says whom to leave, whoever handed it on"


def gone(member: Membership, lost: Lost, name: str) -> bool:
    try:
        member.read(lost.held[name].der)
    except EnvelopeError as error:
        return error.detail is Refusal.REVOKED
    return False


def test_a_list_is_learnt_by_its_serials_too(tmp_path: Path) -> None:
    lost = Lost.backed_up(tmp_path)
    serials = frozenset({lost.held["hall"].serial, 77})
    learn_list(lost.folder, "edge-1", lost.site().authority.crl(serials, 9))
    with Enrolment(lost.folder) as enrolment:
        assert (enrolment.revoked().number, enrolment.revoked().serials) == (10, serials)
        assert enrolment.revoked().ids == {lost.held["hall"].id}
        assert enrolment.learn(RevocationList(9, serials), now=1.0) == 0
        assert (enrolment.revoked().number, enrolment.revoked().serials) == (10, serials)


def test_who_is_revoked_while_a_list_is_read_is_on_it_or_on_a_newer_one(tmp_path: Path) -> None:
    lost = Lost.backed_up(tmp_path)
    with Enrolment(lost.folder) as enrolment:
        for step in (1, 2, 3):
            queries = iter(range(1, 9))

            def revokes(_: str, queries: Iterator[int] = queries, step: int = step) -> None:
                if next(queries) == step:
                    lost.revoke(f"{step:032x}", at=time.time())

            enrolment._connection.set_trace_callback(revokes)
            found = enrolment.revoked()
            enrolment._connection.set_trace_callback(None)
            assert len(found.ids) == step or enrolment.revoked().number > found.number


def test_a_list_of_another_authority_is_not_learnt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost.backed_up(tmp_path)
    other = Authority.create(tmp_path / "other", "home")
    for forged in (other.crl([lost.held["hall"].serial], 9), b"no list"):
        learn_list(lost.folder, "edge-1", forged)
    with Enrolment(lost.folder) as enrolment:
        assert enrolment.revoked() == RevocationList(0, frozenset())
    assert caplog.text.count("is not taken over") == 2


async def test_a_restored_coordinator_asks_learns_and_signs_a_newer_list(tmp_path: Path) -> None:
    """Over the wire, with the real runtime, and although as many were revoked since."""
    lost = Lost.backed_up(tmp_path)
    crl = lost.site().authority.crl([lost.held["hall"].serial], 1)
    shutil.rmtree(lost.folder)
    restore(lost.copy, lost.folder)
    lost.revoke(lost.certify("other", at=time.time()), at=time.time())
    given = recipe()
    toy = toy_edges(given)[0]
    process = Running(folder=lost.folder, recipe=given, edges=[toy])
    process.open()
    try:
        async with watching(lost.site()) as coordinator:
            await eventually(lambda: bool(coordinator.told()))
            assert process.driver is not None
            process.driver.receive(*coordinator.received)
            said = structs.replace(toy.status(), crl=1)
            for message in (toy.hello(), said, m.Revocations(number=1, crl=crl)):
                process._arrive(topics.edge_up("default", toy.id, m.kind(message)), encode(message))
            asked = [one.to for one in process.sent if isinstance(one.message, m.RevocationsNeed)]
            assert asked == [toy.id]
            await eventually(lambda: coordinator.membership.list.number == LISTS_SKIPPED + 2)
            assert gone(coordinator.membership, lost, "hall")
            process.driver.receive(coordinator.told()[-1])
            process.driver.flush()
            news = [one.message for one in process.sent if isinstance(one.message, m.Revocations)]
            assert news[-1].number == LISTS_SKIPPED + 2
    finally:
        process.close()
