"""Edges get the list of the revoked that they lack; one that is not ours is asked for."""

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.edges import ASKS
from fedagent_node.effects import Effect, Revoked, Send
from fedagent_protocol import messages as m
from tests.fakes.engine_field import Field, settings, toy_edges

OURS = 5


def begun() -> Field:
    """Return a field of two edges whose coordinator goes by a list."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2, wait_agents=6))
    field.engine.receive(Revoked(OURS, frozenset(), b"ours"), 0.0)
    return field


def status(field: Field, crl: int, edge: int = 0) -> list[Effect]:
    said = field.edges[edge].status()
    return field.hear(field.edges[edge].id, m.EdgeStatus(epoch=said.epoch, run=said.run, crl=crl))


def lists(effects: list[Effect]) -> list[str]:
    """Return what is sent of lists."""
    wanted = (m.Revocations, m.RevocationsNeed)
    sent = [one.message for one in effects if isinstance(one, Send)]
    return [type(message).__name__ for message in sent if isinstance(message, wanted)]


def shown(number: int) -> m.Revocations:
    return m.Revocations(number=number, crl=b"theirs")


def test_an_edge_without_a_list_gets_ours_and_one_that_has_ours_does_not() -> None:
    field = begun()
    assert lists(status(field, 0)) == ["Revocations"]
    assert lists(status(field, OURS)) == []
    news = field.engine.receive(Revoked(OURS + 1, frozenset(), b"newer"), 0.0)
    assert lists(news) == ["Revocations"]


def test_a_list_older_or_newer_than_ours_is_asked_for_before_the_edge_gets_another() -> None:
    for number in (OURS - 1, OURS + 9):
        field = begun()
        assert lists(status(field, number)) == ["RevocationsNeed"]
        assert lists(field.engine.receive(Revoked(OURS, frozenset(), b"ours"), 0.0)) == []
        effects = field.hear("edge-0", shown(number))
        assert effects[0] == fx.LearnRevocations("edge-0", b"theirs")
        assert lists(effects) == (["Revocations"] if number < OURS else [])
        news = field.engine.receive(Revoked(OURS + 10, frozenset({"a"}), b"both"), 0.0)
        assert lists(news) == ["Revocations"]
        assert lists(status(field, number)) == ["Revocations"]


def test_an_edge_that_has_not_said_what_it_has_is_not_told_yet() -> None:
    field = begun()
    field.hear("edge-0", field.edges[0].hello())
    assert lists(field.engine.receive(Revoked(OURS + 1, frozenset(), b"newer"), 0.0)) == []


def test_an_edge_that_shows_nothing_gets_ours_in_the_end() -> None:
    field = begun()
    said = [lists(status(field, OURS - 1)) for _ in range(ASKS + 1)]
    assert said == [["RevocationsNeed"]] * ASKS + [["Revocations"]]


def test_what_was_not_asked_for_is_not_read() -> None:
    field = begun()
    status(field, OURS)
    assert field.hear("edge-0", shown(6)) == []
    assert field.hear("nobody", shown(6)) == []
    field = begun()
    status(field, 6)
    assert field.hear("edge-0", shown(6)) != []
    assert field.hear("edge-0", shown(7)) == []
