"""The coordinator signs with its key, shows the certificate of today, and signs nothing twice."""

from fedagent_coordinator.site_word import CLAIM_S, SiteWord
from fedagent_protocol.signatures import verify
from fedagent_protocol.vouching import Assigning, assignment_bytes, is_task_claim
from tests.fakes.voices import identity

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
    assert verify(BOSS.public_bytes, signature, assignment_bytes("home", MADE))
    assert word.assignment(MADE) is signature
    word.assignment(MADE._replace(round=8))
    assert word.assignment(MADE) is not signature, "only the newest round is kept"
