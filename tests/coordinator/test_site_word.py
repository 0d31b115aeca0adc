"""The site at its coordinator: it signs with its key, and shows the certificate of today."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from fedagent_coordinator.core.effects import WordRenewed
from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.site.standing import (
    CLAIM_S,
    SiteWord,
    keep_word,
    open_site,
    own_certificate,
    renewed,
)
from fedagent_node.data_dir import load_or_create
from fedagent_node.errors import CredentialsError
from fedagent_node.site import CERT_FILE, FOLDER
from fedagent_protocol.signed import Assigning, task_of_run, verify
from tests.fakes.voices import identity

if TYPE_CHECKING:
    from fedagent_node.shell import Shell

BOSS = identity("coordinator")
RUN, TASK = "1" * 32, "a" * 64
MADE = Assigning(RUN, 7, "e" * 32, "a" * 32, TASK)


def test_a_word_is_for_a_week_and_shows_the_certificate_as_it_is_then() -> None:
    shown = [b"first"]
    word = SiteWord(BOSS, "home", lambda: shown[-1], lambda: 1000.7)
    claim = word.task(RUN, TASK)
    assert claim is not None
    said = task_of_run("home", RUN, TASK, claim.until_s)
    assert verify(BOSS.public_bytes, claim.signature, said)
    assert claim.until_s == 1000 + CLAIM_S
    shown.append(b"renewed")
    later = word.task(RUN, TASK)
    assert later is not None
    assert (claim.certificate, later.certificate) == (b"first", b"renewed")


def test_an_order_that_is_repeated_costs_no_second_signature() -> None:
    word = SiteWord(BOSS, "home", bytes)
    signature = word.sign(MADE)
    assert verify(BOSS.public_bytes, signature, MADE.statement("home"))
    assert word.sign(MADE) is signature


class Process:
    """What is used here of a `Shell`: a data directory, and a core that takes inputs."""

    membership = tls = None

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.received: list[object] = []

    def receive(self, *events: object) -> None:
        self.received += events


async def test_a_renewed_certificate_makes_a_new_word_once_it_is_in_use(tmp_path: Path) -> None:
    shell = Process(tmp_path)
    site, me = open_site(tmp_path, "home"), load_or_create(tmp_path)
    own = await renewed(cast("Shell", shell), site, me, 30.0)
    assert own.certificate.serial != site.credentials.certificate.serial
    assert shell.received == [], "who renews takes it over first"
    await asyncio.sleep(0)
    assert shell.received == [WordRenewed()]


def test_a_coordinator_that_holds_a_site_vouches_on_loopback_too(tmp_path: Path) -> None:
    shell = Process(tmp_path)
    assert own_certificate(cast("Shell", shell)) is None, "it has founded none"
    site = open_site(tmp_path, "home")
    shown = own_certificate(cast("Shell", shell))
    assert shown is not None
    assert shown() == site.credentials.certificate.der
    (tmp_path / FOLDER / CERT_FILE).write_text("damaged")
    assert own_certificate(cast("Shell", shell)) is None


class Days(Process):
    """Two and a half days of virtual time, in which somebody sets the wall clock.

    Attributes:
        renewed_at: When the word was renewed.
    """

    def __init__(self, directory: Path, *, set_at: float, ahead: float) -> None:
        super().__init__(directory)
        self.steady, self._set_at, self._ahead = 5.0, set_at, ahead
        self.renewed_at: list[float] = []

    def receive(self, *events: object) -> None:
        assert events == (WordRenewed(),)
        self.renewed_at.append(self.steady)

    def wall(self) -> float:
        return 1e9 + self.steady + (self._ahead if self.steady > self._set_at else 0.0)

    async def sleep(self, seconds: float) -> None:
        self.steady += seconds
        if self.steady > 2.5 * 86_400:
            raise asyncio.CancelledError

    def play(self, patch: pytest.MonkeyPatch) -> list[float]:
        with patch.context() as virtual:
            virtual.setattr(asyncio, "sleep", self.sleep)
            virtual.setattr(time, "time", self.wall)
            virtual.setattr(time, "monotonic", lambda: self.steady)
            with pytest.raises(asyncio.CancelledError):
                keep_word(cast("Shell", self)).send(None)
        return self.renewed_at


@pytest.mark.parametrize("ahead", [8 * 86_400.0, -3600.0])
def test_a_clock_that_is_set_has_the_word_signed_anew_within_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    first, *others = Days(tmp_path, set_at=600.0, ahead=ahead).play(monkeypatch)
    assert 600.0 <= first <= 900.0
    assert len(others) == 2, "then once a day"
    assert len(Days(tmp_path, set_at=0.0, ahead=5.0).play(monkeypatch)) == 2


def test_a_site_is_founded_once(tmp_path: Path) -> None:
    first = open_site(tmp_path, "hall")
    again = open_site(tmp_path, "hall")
    assert first == again
    assert first.credentials.certificate.role == "coordinator"
    assert first.credentials.certificate.id == load_or_create(tmp_path).id
    assert first.credentials.revocations().serials == frozenset()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "site").iterdir())
    with pytest.raises(RefusedError, match="belongs to site 'hall'"):
        open_site(tmp_path, "attic")


def test_the_own_certificate_is_renewed_at_two_thirds(tmp_path: Path) -> None:
    now = time.time()
    first = open_site(tmp_path, "hall").credentials.certificate
    assert open_site(tmp_path, "hall", now=now + 86_400 * 19).credentials.certificate == first
    later = now + 86_400 * 20.1
    assert open_site(tmp_path, "hall", now=later).credentials.certificate.not_before > now + 86_400


def test_a_lost_key_is_said(tmp_path: Path) -> None:
    open_site(tmp_path, "hall")
    (tmp_path / "site" / "authority.key").unlink()
    with pytest.raises(CredentialsError, match="every device has to join again"):
        open_site(tmp_path, "hall")
