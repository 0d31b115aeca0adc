"""Edges get the list of the revoked that they lack; what we have lost they are asked for first."""

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.edges import ASKS
from fedagent_node.effects import Effect, Revoked, Send, Warn
from fedagent_protocol import messages as m
from tests.fakes.engine_field import Field, settings, toy_edges

LOST = (4, 1004)
"""List 4 is that of the backup; up to 1003 may have been made since."""


def restored(number: int = 1004) -> Field:
    """Return a field of two edges whose coordinator was restored from a backup."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2, wait_agents=6))
    field.engine.receive(fx.Enrolled(frozenset(), lost=LOST), 0.0)
    field.engine.receive(Revoked(number, frozenset(), b"ours"), 0.0)
    return field


def status(field: Field, crl: int, edge: int = 0) -> list[Effect]:
    said = field.edges[edge].status()
    return field.hear(field.edges[edge].id, m.EdgeStatus(epoch=said.epoch, run=said.run, crl=crl))


def lists(effects: list[Effect]) -> list[tuple[str, str]]:
    """Return who is sent a list, or asked for one."""
    wanted = (m.Revocations, m.RevocationsNeed)
    return [
        (one.to, type(one.message).__name__)
        for one in effects
        if isinstance(one, Send) and isinstance(one.message, wanted)
    ]


def shown(number: int) -> m.Revocations:
    return m.Revocations(number=number, crl=b"theirs")


def test_an_edge_that_is_behind_gets_the_list_and_one_that_has_it_does_not() -> None:
    field = restored()
    assert lists(status(field, 4)) == [("edge-0", "Revocations")]
    assert lists(status(field, 1004)) == []


def test_a_list_that_was_lost_is_asked_for_before_the_edge_gets_another() -> None:
    field = restored()
    first = status(field, 6)
    assert lists(first) == [("edge-0", "RevocationsNeed")]
    (said,) = [one.text for one in first if isinstance(one, Warn)]
    assert "goes by revocation list 6" in said
    assert field.hear("edge-0", shown(6)) == [fx.LearnRevocations("edge-0", b"theirs")]
    news = field.engine.receive(Revoked(1005, frozenset({"a"}), b"both"), 0.0)
    assert lists(news) == [("edge-0", "Revocations")]
    assert lists(status(field, 6)) == [("edge-0", "Revocations")]


def test_a_list_beyond_ours_is_asked_for_and_said_once() -> None:
    field = restored()
    for _ in range(2):
        effects = status(field, 2000)
        assert lists(effects) == [("edge-0", "RevocationsNeed")]
    assert not [one for one in effects if isinstance(one, Warn)]


def test_an_edge_that_has_not_said_what_it_has_is_not_told_yet() -> None:
    field = restored()
    field.hear("edge-0", field.edges[0].hello())
    assert lists(field.engine.receive(Revoked(1005, frozenset(), b"newer"), 0.0)) == []
    field.engine.receive(fx.Enrolled(frozenset()), 0.0)
    news = field.engine.receive(Revoked(1006, frozenset(), b"newer"), 0.0)
    assert lists(news) == [("edge-0", "Revocations")], "where nothing was lost it is at once"


def test_an_edge_that_shows_nothing_gets_ours_in_the_end() -> None:
    field = restored()
    said = [lists(status(field, 6)) for _ in range(ASKS + 1)]
    assert said == [[("edge-0", "RevocationsNeed")]] * ASKS + [[("edge-0", "Revocations")]]


def test_what_was_not_asked_for_is_not_read() -> None:
    field = restored()
    status(field, 4)
    assert field.hear("edge-0", shown(6)) == []
    assert field.hear("nobody", shown(6)) == []
    status(field, 6)
    assert field.hear("edge-0", shown(6)) != []
    assert field.hear("edge-0", shown(7)) == []
