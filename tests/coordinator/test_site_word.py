"""The coordinator signs with its key, shows the certificate of today, and signs nothing twice."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedagent_coordinator.core.effects import WordRenewed
from fedagent_coordinator.revocation import renewed
from fedagent_coordinator.site import open_site
from fedagent_coordinator.site_word import CLAIM_S, SiteWord, own_certificate
from fedagent_node.credentials import CERT_FILE, FOLDER
from fedagent_node.data_dir import load_or_create
from fedagent_protocol.signatures import verify
from fedagent_protocol.vouching import Assigning, is_task_claim, made_bytes
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
    assert is_task_claim(claim, BOSS.public_bytes, site="home", run=RUN, task=TASK)
    assert claim.until_s == 1000 + CLAIM_S
    shown.append(b"renewed")
    later = word.task(RUN, TASK)
    assert later is not None
    assert (claim.certificate, later.certificate) == (b"first", b"renewed")


def test_an_order_that_is_repeated_costs_no_second_signature() -> None:
    word = SiteWord(BOSS, "home", bytes)
    signature = word.assignment(MADE)
    assert verify(BOSS.public_bytes, signature, made_bytes("home", MADE))
    assert word.assignment(MADE) is signature
    word.assignment(MADE._replace(round=8))
    assert word.assignment(MADE) is not signature, "only the newest round is kept"


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
