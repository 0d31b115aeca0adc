"""The engine against toy edges: what happens, in which order, and exactly once."""

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import pytest

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.readiness import NeedsUnmetError
from fedagent_coordinator.policies.base import Bound, FloatArray, IntArray, RoundView, Selection
from fedagent_coordinator.policies.state import StatelessPolicy
from fedagent_node.effects import Effect, LinkDown, LinkUp, Send
from fedagent_protocol import messages as m
from tests.fakes.engine_field import (
    MANIFEST,
    Field,
    MemoryIndices,
    settings,
    toy_edges,
)
from tests.fakes.toy_edge import ToyAgent, ToyEdge


class FixedPolicy(StatelessPolicy):
    """Chooses the pairs it was told to, whatever is seen."""

    def __init__(self, pairs: list[int], needs: frozenset[str] = frozenset()) -> None:
        self.pairs: IntArray = np.array(pairs, dtype=np.int64)
        self.needs = needs

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        scores: FloatArray = np.zeros(len(view.pair_client))
        bound = np.full(len(scores), Bound.RANK, dtype=np.int8)
        return Selection(pairs=self.pairs, scores=scores, bound=bound, notes={})


def check_books(field: Field) -> None:
    """Assert what holds after every run, however it went."""
    assert set(field.settled) == set(field.reserved)
    assert field.learnt == sorted(field.settled)
    numbers = sorted(field.reserved)
    assert numbers == list(range(1, len(numbers) + 1))
    events = [event.fields["round"] for event in field.events if event.name == "round"]
    assert events == numbers
    for settle in field.settled.values():
        prices = settle.feedback.view.client_price[
            settle.feedback.view.pair_client[settle.feedback.pairs]
        ]
        paid = int(prices[~settle.feedback.void].sum())
        assert sum(edge.spent_micro for edge in settle.edges) == paid


def test_no_time_is_lost_between_rounds() -> None:
    field = Field(toy_edges(), settings(count=50), plan=lambda _: [0.001])
    began = field.kernel.now
    field.run()
    rounds = [e for e in field.events if e.name == "round"]
    assert len(rounds) == 50
    # Four message delays per round (open, columns, order, report), and the
    # end of the run is noticed within the last pause of the harness.
    assert field.kernel.now - began < 50 * 0.0045 + 4.0


def test_a_policy_that_nobody_can_serve_is_refused() -> None:
    with pytest.raises(NeedsUnmetError, match="the outcome of a round"):
        Field(toy_edges(), policy=FixedPolicy([], frozenset({"truth"})))
    field = Field(toy_edges(), policy=FixedPolicy([], frozenset({"horoscope"})))
    with pytest.raises(NeedsUnmetError, match="horoscope") as caught:
        field.run()
    assert caught.value.reported == ("compute",)
    assert not field.reserved


def test_empty_rounds_are_rounds_and_paced() -> None:
    field = Field(toy_edges(), settings(count=3), policy=FixedPolicy([]))
    began = field.kernel.now
    field.run()
    check_books(field)
    assert len(field.settled) == 3
    assert field.kernel.now - began > 2.0
    assert not field.edges[0].orders


def test_nothing_starts_before_enough_edges_and_agents_are_there() -> None:
    edges = toy_edges(2)
    field = Field(edges, settings(count=2, wait_edges=2, wait_agents=6))
    edges[1].mute = True
    field.kernel.after(20.0, lambda: setattr(edges[1], "mute", False))
    field.run()
    check_books(field)
    assert len(field.settled) == 2
    assert field.reasons()[0] == "edges"
    # A question every second at most while nothing can be decided.
    assert len([o for _, o in field.sent if isinstance(o, m.RoundOpen)]) < 60


def test_waiting_has_a_reason() -> None:
    edges = toy_edges(agents=2)
    for agent in edges[0].agents:
        agent.available = False
    field = Field(edges, settings(count=1))
    field.kernel.after(10.0, lambda: setattr(edges[0].agents[0], "available", True))
    field.run()
    assert "agents" in field.reasons()
    assert len(field.settled) == 1
    dear = toy_edges(agents=1)
    dear[0].agents[0].price = 99_000_000
    field = Field(dear, settings(count=1))
    field.run(until=20.0)
    assert "prices" in field.reasons()
    assert not field.reserved


@pytest.mark.parametrize("whose", ["the coordinator's", "the edge's"])
@pytest.mark.parametrize("outages", [1, 4])
def test_an_outage_of_the_own_broker_is_not_counted_against_the_edges(
    whose: str, outages: int
) -> None:
    """The report comes 9 to 11 s after the order; without an outage, 6 s are the limit."""
    cut = False
    field = Field(toy_edges(), settings(count=1), plan=lambda _: [] if cut else [0.001])

    def turn(down: bool) -> None:
        nonlocal cut
        cut = down
        if whose == "the coordinator's":
            event = LinkDown("edges") if down else LinkUp("edges")
            field.perform(field.engine.receive(event, field.kernel.now))

    def order(self: fx.Reserve) -> None:
        each = 9.0 / outages
        for nth in range(outages):
            field.kernel.after(0.0005 + nth * each, partial(turn, down=True))
            # But for the last time, nothing gets through before it is gone again.
            up = each if nth == outages - 1 else each - 0.0001
            field.kernel.after(nth * each + up, partial(turn, down=False))

    field.perform = partial(_on_reserve, field.perform, order)  # type: ignore[method-assign] # of this test
    field.run()
    assert set(field.settled) == {1}
    paid = (~field.settled[1].feedback.void).all()
    assert bool(paid) is (whose == "the coordinator's")


def test_an_edge_that_takes_no_part_holds_nobody_up_and_is_back_at_its_word() -> None:
    field = Field(toy_edges(2), settings(count=5, wait_edges=2, wait_agents=6, every_s=3.0))
    full = field.edges[1]
    took, status = full._offered, full.status

    def say(trouble: str) -> None:
        full.model = b"" if trouble else full.model
        # It would take no model: the others would wait for it.
        full._offered = (lambda *_: []) if trouble else took  # type: ignore[method-assign] # of this test
        full.status = lambda: msgspec.structs.replace(status(), trouble=trouble)  # type: ignore[method-assign]
        field.up(full, full.status())

    field.kernel.after(4.0, lambda: say("No space left on device"))
    field.kernel.after(10.0, lambda: say(""))
    field.run()
    check_books(field)
    assert [len(field.settled[n].feedback.pairs) for n in range(1, 6)] == [6, 6, 3, 3, 6]
    spent = [float(str(e.fields["seconds"])) for e in field.events if e.name == "round"]
    assert max(spent) < 1.0, spent
    assert [one.text for one in field.warned] == [
        "edge name of edge-1 does not take part in rounds: No space left on device",
        "edge name of edge-1 takes part again",
    ]


def _on_reserve(
    perform: Callable[[list[Effect]], None],
    then: Callable[[fx.Reserve], None],
    effects: list[Effect],
) -> None:
    perform(effects)
    for effect in effects:
        if isinstance(effect, fx.Reserve):
            then(effect)


def test_agents_that_do_not_belong_to_the_site_get_no_order() -> None:
    field = Field(toy_edges(2), settings(count=3, wait_edges=2))
    field.engine.receive(fx.Enrolled(frozenset({"agent-0-0", "agent-1-0", "agent-1-1"})), 0.0)
    field.run()
    check_books(field)
    for settle in field.settled.values():
        assert len(settle.feedback.pairs) == 3
    said = [event.fields for event in field.events if event.name == "suspicious"]
    assert [(one["edge"], one["what"], one["agents"]) for one in said] == [
        ("edge-0", "strangers", 2),
        ("edge-1", "strangers", 1),
    ]
    assert field.engine.counters["not_enrolled"] >= 3 * 3


def test_what_a_site_calls_its_members_stands_and_of_others_nothing_is_noted() -> None:
    """An edge that calls a device, or itself, by another's name leads nobody to revoke that one."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2))
    names = {"agent-0-0": "kitchen", "agent-1-0": "cellar", "edge-1": "the yard", "gone": "attic"}
    field.edges[0].agents[0].name = "cellar"
    members = frozenset({"agent-0-0", "agent-1-0"})
    kept = field.engine.receive(fx.Enrolled(members, names), 0.0)
    assert [one for one in kept if isinstance(one, fx.KeepMembers)] == [
        fx.KeepMembers(frozenset({*names}), members)
    ]
    noted: list[str] = []
    perform = field.perform

    def watched(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.NoteDevices) and effect.status is not None:
                noted.extend(note.agent for note in effect.status.devices)
        perform(effects)

    field.perform = watched  # type: ignore[method-assign] # it is watched
    field.run()
    assert set(noted) == members
    assert isinstance(field.engine.run.indices, MemoryIndices)
    assert field.engine.run.indices.label_of["agent-0-0"] == "kitchen"
    assert [edge.name for edge in field.engine.run.edges.by_id.values()] == ["edge-0", "the yard"]


def test_who_joins_the_site_after_its_edge_told_of_it_is_told_of_again_and_called_by_its_name() -> (
    None
):
    """An edge tells what changed once; enrolments are looked at once a second."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2))
    field.engine.receive(fx.Enrolled(frozenset()), 0.0)
    asked: list[str] = []

    def enrol(members: set[str]) -> None:
        names = dict.fromkeys([*members, "edge-1"], "the yard")
        effects = field.engine.receive(fx.Enrolled(frozenset(members), names), field.kernel.now)
        sent = [one for one in effects if isinstance(one, Send)]
        asked.extend(one.to for one in sent if isinstance(one.message, m.EdgeWelcome))
        field.perform(effects)

    field.kernel.after(3.0, partial(enrol, {"agent-1-0"}))
    field.kernel.after(3.5, partial(enrol, set()))
    field.run(until=4.0)
    assert isinstance(field.engine.run.indices, MemoryIndices)
    assert field.engine.run.indices.label_of["edge-1"] == "the yard"
    assert sorted(asked) == ["edge-0", "edge-1"], "once, as somebody came"


def test_an_edge_that_starts_again_and_again_fills_no_log() -> None:
    field = Field(toy_edges(), settings(count=1000, every_s=30.0))
    edge, kernel = field.edges[0], field.kernel

    def restart() -> None:
        edge.restart()
        field.up(edge, edge.hello())
        kernel.after(0.5, restart)

    kernel.after(20.0, restart)
    field.run(until=200.0)
    said = [event for event in field.events if event.name == "edge_joined"]
    assert len(said) == 1, "when it came"


def test_an_edge_that_invents_agents_fills_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedagent_coordinator.core.edges.MAX_CLIENTS", 5)
    liar = ToyEdge("edge-9", MANIFEST, [ToyAgent(f"invented-{i}") for i in range(40)])
    field = Field([*toy_edges(), liar], settings(count=4))
    field.run()
    check_books(field)
    assert len(field.settled) == 4
    indices = field.engine.run.indices
    assert isinstance(indices, MemoryIndices)
    honest = {agent for agent in indices.client_of if agent.startswith("agent-0-")}
    assert len(honest) == 3, "who is at another edge is observed"
    assert len(indices.client_of) <= 2 * 5
    assert [e.fields["what"] for e in field.events if e.name == "suspicious"] == ["crowded"]
    assert field.engine.counters["no_index"] >= 35


def test_a_run_without_an_end_goes_on_until_its_budget_is_spent() -> None:
    field = Field(toy_edges(), settings(count=0, every_s=1.0, merge_every=2))
    field.run(until=40.0)
    assert field.end == ""
    assert 30 < len(field.settled) <= 41
    poor = Field(toy_edges(), settings(count=0, total_micro=30_000_000, merge_every=2))
    poor.run()
    assert poor.end == "budget"
    assert len(poor.settled) == 10
