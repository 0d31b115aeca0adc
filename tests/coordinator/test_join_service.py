"""Joining a site over a real socket: as people do it, and as a hostile neighbour would."""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.site import joining as join_service
from fedagent_coordinator.site.enrolment import (
    INVITATION_S,
    KEPT_CERTIFICATES,
    MAX_PENDING,
    Enrolment,
    Member,
)
from fedagent_coordinator.site.joining import JoinService
from fedagent_coordinator.site.standing import open_site
from fedagent_node.data_dir import load_or_create
from fedagent_node.errors import JoinError
from fedagent_node.site import enrolling
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.enrolling import Admitted, Applicant, Waiting, ask
from fedagent_node.site.joining import MAX_FRAME_BYTES, JoinAnswer, code_of, framed, read
from tests.fakes.links import eventually

LOOPBACK = "127.0.0.1"


@dataclass
class Field:
    """A site whose clock the test turns."""

    folder: Path
    site: str = "hall"
    now: float = 1_800_000_000.0

    def __post_init__(self) -> None:
        (self.folder / "c").mkdir(parents=True, exist_ok=True)
        self.home = open_site(self.folder / "c", self.site, now=self.now)
        self.enrolment = Enrolment(self.folder / "c")
        self.service = JoinService(
            *(self.home, self.enrolment),
            certificate_days=30,
            broker_port=7000,
            clock=lambda: self.now,
        )
        self.place = ""

    def device(self, name: str = "kitchen", **known: str | bytes) -> Applicant:
        identity = load_or_create(self.folder / name)
        return replace(
            Applicant(identity, role="agent", site=self.site, name=name),
            **known,  # type: ignore[arg-type]  # fields of it
        )

    def invited(self, name: str = "kitchen", role: str = "agent") -> Applicant:
        secret = secrets.token_bytes(16)
        self.enrolment.invite(name, role, secret, now=self.now)
        mark = fingerprint(self.home.authority.der)
        return self.device(name, secret=secret, fingerprint=mark)

    def member(self, name: str = "kitchen") -> Member:
        (found,) = [one for one in self.enrolment.members(now=self.now) if one.name == name]
        return found

    def count(self, reason: str) -> int:
        return self.service.counters[f"join_{reason}"]


@asynccontextmanager
async def serving(folder: Path, **settings: float) -> AsyncIterator[Field]:
    made = Field(folder, **settings)  # type: ignore[arg-type]  # numbers of it
    port = await made.service.start(LOOPBACK, 0)
    made.place = f"{LOOPBACK}:{port}"
    try:
        async with asyncio.timeout(600):
            yield made
    finally:
        await made.service.listener.close()
        made.enrolment.close()


async def refused(made: Field, applicant: Applicant) -> str:
    with pytest.raises(JoinError) as caught:
        await ask(made.place, applicant)
    assert caught.value.hint
    return caught.value.reason


async def test_an_invitation_lets_one_device_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        invited = made.invited()
        found = await ask(made.place, invited)
        assert isinstance(found, Admitted)
        assert found.certificate.id == invited.identity.id
        assert found.certificate.role == "agent"
        assert found.certificate.not_after == made.now + 30 * 86_400
        assert found.answer.name == "kitchen"
        assert found.answer.services == (made.place,)
        assert found.answer.broker_port == 7000, "an edge in another subnet finds it there"
        assert made.member().state == "joined"
        assert (await ask(made.place, invited)) == found, "an answer that got lost comes again"
        thief = made.device("thief", secret=invited.secret, fingerprint=invited.fingerprint)
        assert await refused(made, thief) == "used_invitation"
        assert made.count("used_invitation") == 1


def code(made: Field, answer: Admitted | Waiting, device: Applicant) -> str:
    """Return the code that a device shows."""
    assert isinstance(answer, Waiting)
    return code_of(answer.ca_der, device.identity.public_bytes)


async def test_a_device_waits_until_its_code_is_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        device = made.device()
        shown = code(made, await ask(made.place, device), device)
        assert made.member().code == shown
        assert code(made, await ask(made.place, device), device) == shown, "it stays"
        with pytest.raises(RefusedError):
            made.enrolment.accept("AAAA-BBBB-CCCC", device.identity.id, now=made.now)
        made.now += 301
        with pytest.raises(RefusedError):
            made.enrolment.accept(shown, device.identity.id, now=made.now)
        await ask(made.place, device)
        typed = shown.lower().replace("-", " ")
        made.enrolment.accept(typed, device.identity.id, now=made.now)
        found = await ask(made.place, device)
        assert isinstance(found, Admitted)
        assert made.member().state == "joined"


async def test_who_stands_between_shows_another_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        async with serving(tmp_path / "rogue") as rogue:
            device, go_between = made.device(), rogue.device("kitchen")
            shown = code(made, await ask(rogue.place, device), device)
            await ask(made.place, go_between)
        assert made.member().code != shown


async def test_an_invitation_is_128_bits_that_nobody_guesses(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        honest = made.invited()
        assert len(honest.secret) == 16
        for near in (bytes(16), honest.secret[:-1], bytes([honest.secret[0] ^ 1]) * 16):
            thief = made.device("thief", secret=near)
            assert await refused(made, thief) == "unknown_invitation"
        assert made.count("unknown_invitation") == 3
        assert isinstance(await ask(made.place, honest), Admitted)
        assert [one.name for one in made.enrolment.members(now=made.now)] == ["kitchen"]


async def test_a_false_site_learns_nothing_and_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The man in the middle of a join with an invitation: other authority, same names."""
    async with serving(tmp_path) as made:
        invited = made.invited()
        async with serving(tmp_path / "rogue") as rogue:
            heard: list[str] = []
            monkeypatch.setattr(rogue.enrolment, "decide", lambda *_, **__: heard.append(""))
            assert await refused(rogue, invited) == "other_authority"
            assert heard == []
        assert isinstance(await ask(made.place, invited), Admitted)


async def test_a_request_for_another_service_opens_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        signed = enrolling._request(made.invited(), b"the certificate of a go-between")
        answer = await said(made, framed(msgspec.msgpack.encode(signed)))
        assert answer.refused == "bad_signature"


async def test_an_invitation_ends_after_a_day(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        invited = made.invited()
        made.now += INVITATION_S + 1
        assert await refused(made, invited) == "expired_invitation"
        assert made.enrolment.members(now=made.now) == []


async def test_a_disk_that_takes_nothing_lets_nobody_in_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as made:
        invited = made.invited()
        made.enrolment._connection.execute("PRAGMA query_only = ON")
        assert await refused(made, invited) == "closed"
        assert "readonly" in caplog.text
        assert "Traceback" not in caplog.text
        made.enrolment._connection.execute("PRAGMA query_only = OFF")
        assert isinstance(await ask(made.place, invited), Admitted)


async def test_an_invitation_is_for_its_role_and_site(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        invited = made.invited()
        assert await refused(made, replace(invited, role="edge")) == "wrong_role"
        assert await refused(made, replace(invited, site="attic")) == "wrong_site"
        assert made.count("wrong_role") == 1
        assert made.count("wrong_site") == 0, "the device itself saw it, and said nothing"
        assert isinstance(await ask(made.place, invited), Admitted)
        assert await refused(made, replace(invited, role="edge", secret=b"")) == "wrong_role"


async def test_who_is_known_renews_without_a_person_and_who_was_revoked_does_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as made:
        first = await ask(made.place, made.invited())
        assert isinstance(first, Admitted)
        made.now += 45 * 86_400  # a long time off: expired by now
        known = made.device(fingerprint=fingerprint(made.home.authority.der))
        second = await ask(made.place, known)
        assert isinstance(second, Admitted)
        assert second.certificate.not_after == made.now + 30 * 86_400
        assert made.enrolment.revoked().number == 0
        made.enrolment.revoke(known.identity.id, now=made.now)
        out = made.enrolment.revoked()
        assert out.number == 1
        assert second.certificate.serial in out.serials
        assert await refused(made, known) == "revoked"
        assert await refused(made, made.invited()) == "revoked", "for good, whatever it brings"


async def test_a_clock_that_was_ahead_forgets_no_revocation(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        gone, stolen = [await ask(made.place, made.invited(name)) for name in ("hall", "shed")]
        assert isinstance(gone, Admitted)
        assert isinstance(stolen, Admitted)
        made.enrolment.revoke(gone.certificate.id, now=made.now)
        made.now += 400 * 86_400
        assert isinstance(await ask(made.place, made.invited("bath")), Admitted)
        made.now -= 400 * 86_400
        made.enrolment.revoke(stolen.certificate.id, now=made.now)
        serials = frozenset({gone.certificate.serial, stolen.certificate.serial})
        out = made.enrolment.revoked()
        assert (out.number, out.serials) == (2, serials)


async def test_of_one_member_few_certificates_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        device = made.invited()
        for _ in range(2 * KEPT_CERTIFICATES):
            assert isinstance(await ask(made.place, device), Admitted)
            device = replace(device, secret=b"")
            made.now += 40 * 86_400
        made.enrolment.revoke(device.identity.id, now=made.now)
        assert len(made.enrolment.revoked().serials) == KEPT_CERTIFICATES


async def test_the_name_of_a_stranger_writes_nothing_on_a_terminal(tmp_path: Path) -> None:
    """It is shown beside the code that a person compares."""
    async with serving(tmp_path) as made:
        name = "kit\x1b[2J\nchen\u202e"
        await ask(made.place, replace(made.device(), name=name))
        assert made.member("kit [2J chen").state == "pending"


async def test_another_key_is_not_spoken_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        victim, thief = made.invited("victim"), made.device("thief")
        assert isinstance(await ask(made.place, victim), Admitted)
        posing = msgspec.structs.replace(thief.identity, public_bytes=victim.identity.public_bytes)
        assert await refused(made, replace(thief, identity=posing)) == "bad_signature"
        assert made.count("bad_signature") == 1


async def said(made: Field, framed_request: bytes) -> JoinAnswer:
    """Return the answer to bytes of a request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = made.place.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    await enrolling.read_frame(reader)
    writer.write(framed_request)
    answer = read(JoinAnswer, await enrolling.read_frame(reader))
    writer.close()
    return answer


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x00", (MAX_FRAME_BYTES + 1).to_bytes(2, "big"), b"\x00\x05\x82\xa1\xa2\xa3\xa4"],
)
async def test_garbage_gets_a_reason_and_is_counted(tmp_path: Path, garbage: bytes) -> None:
    async with serving(tmp_path) as made:
        assert (await said(made, garbage)).refused == "malformed"
        assert made.count("malformed") == 1
        assert isinstance(await ask(made.place, made.invited()), Admitted)


async def test_slow_clients_are_few_and_end_and_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that stop before, in and after the handshake take every place."""
    monkeypatch.setattr(join_service, "MAX_CONNECTIONS", 8)
    async with serving(tmp_path) as made:
        host, _, port = made.place.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        opened[-1][1].write(b"\x16\x03\x01")
        opened[-2][1].write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: made.count("broken_off") >= 4)
        assert len(made.service.listener.places) <= 8
        assert isinstance(await ask(made.place, made.invited()), Admitted)
        made.service.listener.deadline_s = 0.1
        assert isinstance(await ask(made.place, made.invited("other")), Admitted)
        await eventually(lambda: not made.service.listener.places)
        # The service has closed them all, before its loop ends.
        await asyncio.gather(*(reader.read() for reader, _ in opened), return_exceptions=True)
        for _, writer in opened:
            writer.close()


def wait(made: Field, name: str, address: str) -> str:
    """Ask from an address; return what is answered."""
    device = made.device(name)
    request = enrolling._request(device, b"")
    return made.enrolment.decide(request, address, made.home.authority.der, now=made.now)


@pytest.mark.parametrize("addresses", [1, 4, MAX_PENDING])
def test_strangers_who_wait_keep_nobody_from_elsewhere_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: int
) -> None:
    monkeypatch.setattr("fedagent_coordinator.site.enrolment.code_of", lambda _, key: key.hex())
    made = Field(tmp_path)
    for number in range(MAX_PENDING):
        assert wait(made, f"s{number}", f"10.0.0.{number % addresses}") == "wait"
    made.now += 1.0
    assert wait(made, "honest", "10.0.1.1") == "wait"
    answers = [wait(made, f"t{n}", f"10.0.0.{n % addresses}") for n in range(9)]
    assert answers.count("wait") <= 1, "a second"
    pending = [one.name for one in made.enrolment.members(now=made.now)]
    assert "honest" in pending
    assert len(pending) == MAX_PENDING
    made.now += 301
    assert wait(made, "late", "10.0.0.1") == "wait"
    assert len(made.enrolment.members(now=made.now)) == 1
    made.enrolment.close()


async def test_nobody_there_is_said(tmp_path: Path) -> None:
    device = Applicant(load_or_create(tmp_path), role="agent", site="hall", name="")
    with pytest.raises(JoinError, match="does not answer"):
        await ask("127.0.0.1:1", device)
    with pytest.raises(JoinError, match="not an invitation"):
        await ask("127.0.0.1:port", device)
