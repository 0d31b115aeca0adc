"""A device, an edge or a coordinator of another release works with those of this one.

The bytes that the roles of each release sent in a whole round (`tests.fakes.recorded_round`) are
played to the cores of today; and so is what a later release might say in their place.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fedagent_agent.core.worklog import WorkLog
from fedagent_coordinator import store as books
from fedagent_coordinator.database.rows import OutcomeRow
from fedagent_coordinator.reader import open_reader
from fedagent_node.envelope import Gate, _parts
from fedagent_protocol import messages as m
from tests.fakes.recorded_players import (
    Coordinator,
    Device,
    Edge,
    Player,
    message_of,
    sender_of,
)
from tests.fakes.recorded_round import AGENTS, FOLDER, HERE, PRICE, Said, member, recorded

from .test_version_skew import with_later_fields

RELEASES = sorted(path.name for path in FOLDER.iterdir())
FIRST, SECOND = (member(name).id for name in AGENTS)
NAMES = {member(name).id: name for name in ("coordinator", "edge", *AGENTS)}
WORD = "of-a-later-release"
Change = Callable[[dict[str, object], Said], dict[str, object]]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Path:
    return FOLDER / str(request.param)


def said_again(said: list[Said], change: Change, *, more: bool = False) -> list[Said]:
    """Return a round with other bodies, signed anew; with `more`, an unknown kind after each."""
    gates = {one: Gate(member(name), starts=9, clock=lambda: 0.0) for one, name in NAMES.items()}

    def made() -> Iterator[Said]:
        for one in said:
            gate = gates[sender_of(one)]
            body = change(msgspec.msgpack.decode(_parts(one.payload)[-1]), one)
            kind = str(body["t"])
            topic = one.topic
            if kind != one.where.kind and "model" not in topic and "beacon" not in topic:
                topic = f"{topic.rpartition('/')[0]}/{kind}"
            yield replace(one, topic=topic, payload=gate.seal(topic, _packed(body)))
            if more and one.topic.endswith(one.where.kind):
                topic = f"{one.topic.rpartition('/')[0]}/{WORD}"
                yield replace(one, topic=topic, payload=gate.seal(topic, _packed({"t": WORD})))

    return list(made())


def _packed(body: object) -> bytes:
    return msgspec.msgpack.encode(body)


def same(body: dict[str, object], _: Said) -> dict[str, object]:
    return body


def later(body: dict[str, object], _: Said) -> dict[str, object]:
    """Add fields to every struct."""
    made = with_later_fields(body)
    assert isinstance(made, dict)
    return made


def played(kind: type[Player], name: str, release: Path, said: list[Said], to: Path) -> Player:
    player = kind(name, recorded(release)[0], said, to)
    player.play()
    return player


def played_coordinator(
    release: Path, said: list[Said], to: Path, patch: pytest.MonkeyPatch
) -> tuple[Player, list[OutcomeRow]]:
    """Return the coordinator, and what is in its books, which are those of the recorded run."""
    run = next(message_of(one).run for one in said if one.where.kind == "report")
    patch.setattr(books, "uuid", SimpleNamespace(uuid4=lambda: uuid.UUID(run)))
    player = played(Coordinator, "coordinator", release, said, to)
    with open_reader(to) as read:
        assert read.ledger.verify().balanced
        assert [row.state for row in read.rounds(run)] == ["done"]
        return player, list(read.outcomes(run))


EDITIONS = {
    "as recorded": (same, False),
    "with later fields": (later, False),
    "with later kinds": (same, True),
}


@pytest.fixture(params=EDITIONS)
def said(request: pytest.FixtureRequest, release: Path) -> list[Said]:
    change, more = EDITIONS[str(request.param)]
    bare = recorded(release)[1]
    return bare if change is same and not more else said_again(bare, change, more=more)


def named_what_it_did_not_understand(player: Player, said: list[Said]) -> None:
    """Nothing is refused but the kinds that are not known, and these by their name."""
    strange = any(one.where.kind == WORD for one in said)
    refused = [line for line in player.warnings if "refused" in line]
    assert bool(refused) is strange, refused
    assert all(WORD in line and "another release of fedagent" in line for line in refused)
    assert (player.core.counters["malformed"] > 0) is strange
    assert not [key for key in player.core.counters if key.startswith("refused_")]


def test_a_device_works_for_an_edge_of_another_release(
    release: Path, said: list[Said], tmp_path: Path
) -> None:
    device = played(Device, AGENTS[0], release, said, tmp_path)
    assert device.of(m.UpdateOffer)
    (receipt,) = (event for event in device.events if event.name == "receipt")
    assert receipt.fields["status"] == "accepted"
    named_what_it_did_not_understand(device, said)


def test_an_edge_works_with_devices_and_a_coordinator_of_another_release(
    release: Path, said: list[Said], tmp_path: Path
) -> None:
    edge = played(Edge, "edge", release, said, tmp_path)
    report = edge.of(m.RoundReport)[0]
    assert isinstance(report, m.RoundReport)
    assert {one.agent for one in report.outcomes if one.used and one.valid} == {FIRST, SECOND}
    assert not report.failed
    named_what_it_did_not_understand(edge, said)


def test_a_coordinator_pays_for_a_round_of_another_release(
    release: Path, said: list[Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, outcomes = played_coordinator(release, said, tmp_path, monkeypatch)
    assert {row.agent: row.paid_micro for row in outcomes} == dict.fromkeys(
        (FIRST, SECOND), round(PRICE * 1e6)
    )
    named_what_it_did_not_understand(coordinator, said)


# ------------------------------------------------------------ words of a later release


def test_a_receipt_in_another_word_ends_the_transfer_and_is_said(
    release: Path, tmp_path: Path
) -> None:
    def change(body: dict[str, object], one: Said) -> dict[str, object]:
        return body | {"status": WORD} if one.where.kind == "receipt" else body

    device = played(Device, AGENTS[0], release, said_again(recorded(release)[1], change), tmp_path)
    (receipt,) = (event for event in device.events if event.name == "receipt")
    assert receipt.fields["status"] == "other"
    assert len(device.of(m.UpdateOffer)) == 1, "it offers again what has its receipt"
    log = WorkLog()
    lines = [line.text for event in device.events for line in log.lines_for(event, 0.0)]
    assert any("another release" in line for line in lines), lines


def test_a_decline_in_another_word_is_a_decline(release: Path, tmp_path: Path) -> None:
    def change(body: dict[str, object], one: Said) -> dict[str, object]:
        if one.where.kind == "update" and one.where.agent == SECOND:
            kept = {key: body[key] for key in ("run", "round")}
            return kept | {"t": "decline", "reason": WORD}
        return body

    edge = played(Edge, "edge", release, said_again(recorded(release)[1], change), tmp_path)
    report = edge.of(m.RoundReport)[0]
    assert isinstance(report, m.RoundReport)
    ended = {one.agent: one for one in report.outcomes}
    assert (ended[SECOND].status, ended[SECOND].reason) == (m.OutcomeStatus.DECLINED, "other")
    assert edge.core.counters["declined_other"] == 1


def test_an_outcome_in_another_word_is_paid_by_what_is_proved(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`valid` decides, and the device's own claim; the word alone pays and withholds nothing."""

    def change(body: dict[str, object], one: Said) -> dict[str, object]:
        if one.where.kind != "report":
            return body
        outcomes = body["outcomes"]
        assert isinstance(outcomes, list)
        unpaid = {"valid": False, "used": False, "in_time": False, "weight": 0.0}
        return body | {
            "outcomes": [
                row | {"status": WORD} | (unpaid if row["agent"] == SECOND else {})
                for row in outcomes
            ]
        }

    said = said_again(recorded(release)[1], change)
    _, outcomes = played_coordinator(release, said, tmp_path, monkeypatch)
    paid = {row.agent: (row.status, row.paid_micro > 0) for row in outcomes}
    assert paid == {FIRST: ("other", True), SECOND: ("other", False)}


def test_this_release_is_recorded() -> None:
    """What is recorded must be read when the next release is out: record it before."""
    assert HERE.name in RELEASES
