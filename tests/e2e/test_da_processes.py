"""A whole run in which devices decide among themselves: nothing of what they think gets out.

Real processes, one real broker. Looked at is every message from the first on, every file of
edge, coordinator and broker, every log and everything on stdout. Canaries are all opinions,
means, beliefs and indices of all devices (`tests.fakes.leak_search`).
"""

import os
from pathlib import Path

import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_protocol.messages import UpdateOffer

from .da_run import Ran, look_at, look_through_traffic, run_da

LEAKY = '''
"""A build that leaks: the newest own opinion is one more feature of what an agent reports."""

from fedagent_agent.core.device import DeviceState
from fedagent_agent.peers.store import PeerStore

newest = {}
keep, report = PeerStore.keep, DeviceState.context_report


def keeping(self, effect):
    if effect.record.opinion is not None:
        newest["quality"] = effect.record.opinion
    keep(self, effect)


def leaking(self, link, **told):
    said = report(self, link, **told)
    said.features.update(newest)
    return said


PeerStore.keep, DeviceState.context_report = keeping, leaking
'''
UNSEALED = '''
"""A build whose envelopes to neighbours anybody can read, in packets of the right size."""

from cryptography.hazmat.primitives.ciphers import aead


class Open:
    def __init__(self, key):
        pass

    def encrypt(self, nonce, plain, more):
        return plain + bytes(16)

    def decrypt(self, nonce, packet, more):
        return packet[:-16]


aead.ChaCha20Poly1305 = Open
'''


def _run_patched(directory: Path, patch: str) -> Ran:
    """Run three rounds with three agents that are changed as they start."""
    folder = directory / "patched"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(patch)
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    return run_da(directory / "run", rounds=3, agents=3, environment=environment)


def _check_it_was_da(ran: Ran, *, rounds: int) -> None:
    """Neighbours talked, volunteers were booked and trained, and nobody gave an opinion."""
    kinds = {each.kind for each in ran.heard}
    assert {"peer-send", "peer-deliver", "volunteer", "volunteers", "update"} <= kinds
    assert not {"opinion", "opinions"} & kinds
    with open_reader(ran.others[0]) as read:
        (run,) = read.runs()
        evaluated = read.evaluations.rows(run.run_id)
        assert [each.mode for each in evaluated] == ["peers"] * len(evaluated)
        assert len(evaluated) >= rounds
        assert all(each.mean is None for each in evaluated)
        assert len(read.evaluations.volunteers(run.run_id)) >= rounds
        assert read.evaluations.opinions(run.run_id) == []
        outcomes = read.outcomes(run.run_id)
        assert read.ledger.verify().balanced
    assert any(row.used for row in outcomes)
    assert {row.loss for row in outcomes} == {None}
    updates = [each.message for each in ran.heard if isinstance(each.message, UpdateOffer)]
    assert {(offer.stats.loss, offer.stats.score, offer.stats.score_n) for offer in updates} == {
        (0.0, 0.0, 0)
    }


@pytest.mark.slow
def test_no_opinion_belief_or_index_gets_out_of_a_run(tmp_path: Path) -> None:
    rounds, agents = 7, 6
    ran = run_da(tmp_path, rounds=rounds, agents=agents)
    _check_it_was_da(ran, rounds=rounds)
    search = ran.search
    kept = [slot for slots in ran.slots.values() for slot in slots]
    assert len(kept) >= agents * rounds
    assert len(search.canaries) >= 2 * agents * rounds, search.left_out

    assert look_through_traffic(search, ran.heard) == []
    assert ran.stored == ()
    assert look_at(search, ran.others) == []
    for log in ran.logs:
        assert search.look(log.name, log.read_bytes()) == []
    for name, said in ran.said.items():
        assert search.look(f"stdout of {name}", said) == []
    # Four bytes of a sealed envelope are some canary in about one run of five.
    envelopes = {each.sealed for each in ran.heard} - {b""}
    assert len(envelopes) > rounds * agents
    chance = {leak.canary.what for leak in search.look("envelopes", b"".join(envelopes))}
    assert len(chance) <= 3, chance

    for me, folder in ran.folders.items():
        found = {leak.where for leak in search.look_through(folder)}
        assert "peers.sqlite" in {name.removesuffix("-wal") for name in found}, me


@pytest.mark.slow
def test_agents_that_leak_are_caught_with_whose_number_it_is_and_where(tmp_path: Path) -> None:
    ran = _run_patched(tmp_path, LEAKY)
    leaks = look_through_traffic(ran.search, ran.heard)
    for me, slots in ran.slots.items():
        own = {slot.opinion for slot in slots}
        assert own & {leak.canary.value for leak in leaks if f"/a/{me}/up/" in leak.where}, me
    # Two agents may be of one opinion, but not all the time.
    named = {leak.canary.what.split(" in ")[0] for leak in leaks}
    assert named >= {f"opinion of {me[:8]}" for me in ran.slots}
    assert "/up/columns as float32" in "\n".join(map(str, leaks)), "the edge passes features on"
    kept = {leak.where.removesuffix("-wal") for leak in ran.stored}
    assert "coordinator.db" in kept, "what it holds is found there too"


@pytest.mark.slow
def test_envelopes_that_are_not_sealed_are_caught(tmp_path: Path) -> None:
    ran = _run_patched(tmp_path, UNSEALED)
    leaks = look_through_traffic(ran.search, ran.heard)
    assert {leak.where.rpartition("/")[2] for leak in leaks} >= {"peer-send", "peer-deliver"}
    indices = {leak.canary.what.split(" in ")[0] for leak in leaks if "float64" in leak.form}
    assert indices >= {f"index of {me[:8]}" for me in ran.slots}
