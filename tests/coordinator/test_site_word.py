"""The coordinator signs with its key, shows the certificate of today, and signs nothing twice."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from fedagent_coordinator.core.effects import WordRenewed
from fedagent_coordinator.site.folder import open_site, renew_own
from fedagent_coordinator.site.revocation import renewed
from fedagent_coordinator.site.word import CLAIM_S, SiteWord, keep_word, own_certificate
from fedagent_node.data_dir import load_or_create
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
    later = renew_own(tmp_path, site.authority, load_or_create(tmp_path))
    assert shown() == later.certificate.der, "that of today, not that of the start"
    (tmp_path / FOLDER / CERT_FILE).write_text("damaged")
    assert shown() == later.certificate.der
    assert own_certificate(cast("Shell", shell)) is None


class OverError(Exception):
    """The time that a test looks at is over."""


class Day:
    """Virtual time: `set_at` seconds after the start somebody sets the wall clock."""

    def __init__(self, *, set_at: float, ahead: float) -> None:
        self.steady, self._set_at, self._ahead = 5.0, set_at, ahead

    def wall(self) -> float:
        return 1e9 + self.steady + (self._ahead if self.steady > self._set_at else 0.0)

    async def sleep(self, seconds: float) -> None:
        self.steady += seconds
        if self.steady > 2.5 * 86_400:
            raise OverError


class Noting(Process):
    """Notes when the word was renewed."""

    def __init__(self, directory: Path, day: Day) -> None:
        super().__init__(directory)
        self._day = day
        self.renewed_at: list[float] = []

    def receive(self, *events: object) -> None:
        assert events == (WordRenewed(),)
        self.renewed_at.append(self._day.steady)


def renewals(folder: Path, day: Day, patch: pytest.MonkeyPatch) -> list[float]:
    """Return when the word is renewed in two and a half days."""
    shell = Noting(folder, day)
    with patch.context() as virtual:
        virtual.setattr(asyncio, "sleep", day.sleep)
        virtual.setattr(time, "time", day.wall)
        virtual.setattr(time, "monotonic", lambda: day.steady)
        with pytest.raises(OverError):
            keep_word(cast("Shell", shell)).send(None)
    return shell.renewed_at


@pytest.mark.parametrize("ahead", [8 * 86_400.0, -3600.0])
def test_a_clock_that_is_set_has_the_word_signed_anew_within_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    first, *others = renewals(tmp_path, Day(set_at=600.0, ahead=ahead), monkeypatch)
    assert 600.0 <= first <= 900.0
    assert len(others) == 2, "then once a day"
    assert len(renewals(tmp_path, Day(set_at=0.0, ahead=5.0), monkeypatch)) == 2
