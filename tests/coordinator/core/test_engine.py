"""The engine against toy edges: what it waits for, whom it asks, and what it says of it."""

from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.edges import ASKS, MAX_CLIENTS, MAX_SESSIONS, EdgeTable
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import MAX_MICRO, Bound, RoundView, Selection
from fedagent_coordinator.policies.state import StatelessPolicy
from fedagent_coordinator.site.standing import SiteWord
from fedagent_node.effects import LinkDown, LinkUp, Revoked
from fedagent_protocol import messages as m
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, encode
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import Assigning, Calling
from fedagent_task.recipe.spec import EvaluationSpec
from tests.fakes.engine_field import MANIFEST, Field, MemoryIndices, settings, toy_edges
from tests.fakes.toy_edge import ToyAgent, ToyEdge, declined
from tests.fakes.voices import identity

WHY = "schema: csv: there is no such file; check the path"


class Nobody(StatelessPolicy):
    """Chooses nobody, whatever is seen."""

    def __init__(self, needs: frozenset[str] = frozenset()) -> None:
        self.needs = needs

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        scores = np.zeros(len(view.pair_client))
        bound = np.full(len(scores), Bound.RANK, dtype=np.int8)
        return Selection(pairs=np.zeros(0, np.int64), scores=scores, bound=bound, notes={})


def test_no_time_is_lost_between_rounds() -> None:
    field = Field(toy_edges(), settings(count=50))
    field.run()
    rounds = field.said("round")
    assert len(rounds) == 50
    # Six message delays per round: open, columns, order, report, and for the rest of the model.
    assert sum(float(str(fields["seconds"])) for fields in rounds) < 50 * 0.0065


def test_a_policy_that_nobody_can_serve_is_refused() -> None:
    with pytest.raises(PolicyError, match="the outcome of a round"):
        Field(toy_edges(), learning=Learning(Nobody(frozenset({"truth"}))))
    field = Field(toy_edges(), learning=Learning(Nobody(frozenset({"horoscope"}))))
    with pytest.raises(PolicyError, match=r"horoscope.*\(agents report: compute, download_bps\)"):
        field.run()
    assert not field.reserved


def test_empty_rounds_are_rounds_and_paced() -> None:
    field = Field(toy_edges(), settings(count=3), Learning(Nobody()))
    began = field.kernel.now
    field.run()
    assert len(field.settled) == 3
    assert field.kernel.now - began > 2.0 + 2.0, "and the end of the harness"
    assert not field.edges[0].orders


def test_a_round_waits_for_edges_agents_and_prices_and_says_so() -> None:
    edges = toy_edges(2)
    field = Field(edges, settings(count=1, wait_edges=2, wait_agents=6))
    edges[1].mute = True
    field.kernel.after(20.0, lambda: setattr(edges[1], "mute", False))
    field.run()
    assert len(field.settled) == 1
    assert field.reasons()[0] == "edges"
    # A question every second at most while nothing can be decided.
    assert len([send for send in field.sent if isinstance(send.message, m.RoundOpen)]) < 60
    for change, reason in (({"available": False}, "agents"), ({"price": 99_000_000}, "prices")):
        (edge,) = toy_edges(agents=1)
        edge.agents[0] = ToyAgent("agent-0-0", **change)
        field = Field([edge], settings(count=1))
        field.kernel.after(10.0, lambda: setattr(edge.agents[0], "available", True))  # noqa: B023 - played at once
        field.run(until=20.0)
        assert reason in field.reasons()
        assert len(field.settled) == (reason == "agents")


@pytest.mark.parametrize("whose", ["the coordinator's", "the edge's"])
def test_an_outage_of_the_own_broker_is_not_counted_against_the_edges(whose: str) -> None:
    """The report comes 9 to 11 s after the order; without an outage, 6 s are the limit."""
    cut, outages = False, 4
    field = Field(toy_edges(), settings(count=1), plan=lambda _: [] if cut else [0.001])

    def turn(*, down: bool) -> None:
        nonlocal cut
        cut = down
        if whose == "the coordinator's":
            field.take(LinkDown("edges") if down else LinkUp("edges"))

    def fail() -> None:
        each = 9.0 / outages
        for nth in range(outages):
            field.kernel.after(nth * each, partial(turn, down=True))
            # But for the last time, nothing gets through before it is gone again.
            up = each if nth == outages - 1 else each - 0.0001
            field.kernel.after(nth * each + up, partial(turn, down=False))

    field.at_reserve = lambda: field.kernel.after(0.0005, fail)
    field.run()
    assert set(field.settled) == {1}
    paid = (~field.settled[1].feedback.unpaid).all()
    assert bool(paid) is (whose == "the coordinator's")


def test_an_edge_that_falls_silent_holds_up_one_observation() -> None:
    field = Field(toy_edges(2), settings(count=100, wait_edges=2, every_s=0.2))
    field.kernel.after(1.1, lambda: setattr(field.edges[1], "mute", True))
    field.run(until=12.0)
    seconds = [float(str(fields["seconds"])) for fields in field.said("round")]
    assert sum(0.4 < one < 1.0 for one in seconds) == 1
    assert len(seconds) > 20


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
    assert [len(field.settled[n].feedback.pairs) for n in range(1, 6)] == [6, 6, 3, 3, 6]
    assert max(float(str(fields["seconds"])) for fields in field.said("round")) < 1.0
    assert [one.text for one in field.warned] == [
        "edge name of edge-1 does not take part in rounds: No space left on device",
        "edge name of edge-1 takes part again",
    ]


def test_agents_that_do_not_belong_to_the_site_get_no_order_and_members_their_own_names() -> None:
    """An edge that calls a device, or itself, by another's name leads nobody to revoke that one."""
    field = Field(toy_edges(2), settings(count=3, wait_edges=2))
    names = {"agent-0-0": "kitchen", "agent-1-0": "cellar", "edge-1": "the yard", "gone": "attic"}
    field.edges[0].agents[0].name = "cellar"
    members = frozenset({"agent-0-0", "agent-1-0"})
    field.take(fx.Enrolled(members, names))
    assert fx.KeepMembers(frozenset({*names}), members) in field.written
    field.run()
    assert all(len(settle.feedback.pairs) == 2 for settle in field.settled.values())
    strangers = [(one["edge"], one["what"], one["agents"]) for one in field.said("suspicious")]
    assert strangers == [("edge-0", "strangers", 2), ("edge-1", "strangers", 2)]
    noted = [one.status for one in field.written if isinstance(one, fx.NoteDevices) and one.status]
    assert {note.agent for status in noted for note in status.devices} == members
    assert field.indices.label_of["agent-0-0"] == "kitchen"
    assert [edge.name for edge in field.engine.run.edges.by_id.values()] == ["edge-0", "the yard"]


def test_who_joins_the_site_after_its_edge_told_of_it_is_told_of_again() -> None:
    """An edge tells what changed once; enrolments are looked at once a second."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2))
    field.take(fx.Enrolled(frozenset()))
    field.run(until=3.0)
    for members, asked in (({"agent-1-0"}, ["edge-0", "edge-1"]), (set[str](), [])):
        before = len(field.sent)
        field.take(fx.Enrolled(frozenset(members), {"edge-1": "the yard"}))
        sent = field.sent[before:]
        assert [one.to for one in sent if isinstance(one.message, m.EdgeWelcome)] == asked
    assert field.indices.label_of["edge-1"] == "the yard"


def test_an_edge_that_starts_again_and_again_fills_no_log() -> None:
    field = Field(toy_edges(), settings(count=1000, every_s=30.0))
    edge, kernel = field.edges[0], field.kernel

    def restart() -> None:
        edge.restart()
        field.up(edge, edge.hello())
        kernel.after(0.5, restart)

    kernel.after(20.0, restart)
    field.run(until=100.0)
    assert len(field.said("edge_joined")) == 1, "when it came"


def test_an_edge_that_invents_agents_fills_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedagent_coordinator.core.edges.MAX_CLIENTS", 5)
    liar = ToyEdge("edge-9", MANIFEST, [ToyAgent(f"invented-{i}") for i in range(40)])
    field = Field([*toy_edges(), liar], settings(count=4))
    field.run()
    assert len(field.settled) == 4
    honest = [agent for agent in field.indices.client_of if agent.startswith("agent-0-")]
    assert len(honest) == 3, "who is at another edge is observed"
    assert len(field.indices.client_of) <= 2 * 5
    assert [fields["what"] for fields in field.said("suspicious")] == ["crowded"]


def test_a_run_without_an_end_goes_on_until_its_budget_is_spent() -> None:
    field = Field(toy_edges(), settings(count=0, every_s=1.0, merge_every=2))
    field.run(until=40.0)
    assert field.done == ""
    assert 30 < len(field.settled) <= 43
    poor = Field(toy_edges(), settings(count=0, total_micro=30_000_000, merge_every=2))
    poor.run()
    assert poor.done == "budget"
    assert len(poor.settled) == 10


@pytest.mark.parametrize(("patience", "last"), [(1, 3), (2, 6)])
def test_a_run_ends_when_as_many_models_in_a_row_as_wanted_reach_its_target(
    patience: int, last: int
) -> None:
    wanted = settings(count=0, every_s=1.0, stop="target", patience=patience)
    seen = EvaluationSpec(dataset="held-out", target=0.5)
    wanted = replace(wanted, held_out=True, recipe=structs.replace(wanted.recipe, evaluation=seen))
    field = Field(toy_edges(), wanted)
    field.metrics = lambda round_: {"rmse": 0.4 if round_ in (3, 5, 6) else 0.6}
    field.run(until=40.0)
    assert field.done == "target"
    assert max(field.settled) == last


# ------------------------------------------------------------- clients that bring nothing


def test_a_client_that_declines_is_asked_ever_more_seldom_until_its_next_valid_update() -> None:
    (edge,) = toy_edges(agents=1)
    agent = edge.agents[0]
    agent.outcome = declined(agent.id, WHY)
    field = Field([edge], settings(count=2000), plan=lambda _: [0.05])
    field.kernel.after(30.0, lambda: setattr(agent, "outcome", None))
    field.run(until=29.0)
    # 0.25 + 0.5 + ... + 16 s and the pauses of the waiting.
    assert 6 <= sum(settled.declined for settled in field.settled.values()) <= 8
    assert field.said("waiting")[-1]["detail"] == WHY
    field.kernel.run(until=field.kernel.now + 20.0)
    agent.outcome, before = declined(agent.id, WHY), len(field.settled)
    field.kernel.run(until=field.kernel.now + 4.0)
    assert 3 <= len(field.settled) - before <= 5, "0.25 + 0.5 + 1 s again"


def test_a_model_from_which_nobody_can_train_is_taken_back_and_its_edge_named() -> None:
    edges = toy_edges(agents=2)
    agents = [agent for edge in edges for agent in edge.agents]
    field = Field(edges, settings(count=6))
    field.run(stop=lambda: len(field.committed) == 2)
    good, bad = field.committed
    field.engine.run.models.farthest = edges[0].id
    for agent in agents:
        agent.outcome = declined(agent.id, "norm: norm 2e+05 is over limits.norm = 100")
    field.kernel.run(until=field.kernel.now + 60.0, stop=lambda: len(field.committed) == 3)
    assert field.committed == [good, bad, good]
    (said,) = [
        warn.text for warn in field.warned if "the run goes on from the one before" in warn.text
    ]
    assert "limits.norm" in said
    assert said.endswith(f"edge {edges[0].id} moved most in its merge")
    for agent in agents:
        agent.outcome = None
    field.kernel.run(until=field.kernel.now + 60.0)
    assert field.done == "rounds"


def test_a_client_that_is_mute_holds_up_few_rounds() -> None:
    (edge,) = toy_edges(agents=2)
    mute, missed = edge.agents[0], m.OutcomeStatus.MISSED
    mute.outcome = m.Outcome(
        agent=mute.id, status=missed, censored=True, tau_ms=1000, reason=m.UNANSWERED
    )
    field = Field([edge], settings(count=100), plan=lambda _: [0.05])
    field.run(until=40.0)
    # Away for 2, 4, 8 and 16 of some 30 seconds.
    assert sum(m.UNANSWERED in one.details.reason for one in field.settled.values()) == 4
    assert len(field.settled) == 100


@pytest.mark.parametrize("status", [m.OutcomeStatus.REJECTED, m.OutcomeStatus.GONE])
def test_rounds_that_bring_nothing_valid_slow_down_whatever_the_reason(
    status: m.OutcomeStatus,
) -> None:
    edges = toy_edges(agents=1)
    edges[0].agents[0].outcome = m.Outcome(agent="agent-0-0", status=status, tau_ms=1)
    field = Field(edges, settings(count=60))
    field.run(until=30.0)
    # 0.25 + 0.5 + 1 + 2 + 4 + 5 + 5 + ...
    assert 8 <= len(field.settled) <= 11


# --------------------------------------------------------- what is signed, and who is out


def test_orders_calls_and_the_task_are_signed_and_a_word_that_is_renewed_reaches_every_edge() -> (
    None
):
    given = settings(count=2, wait_edges=2, wait_agents=6, opinions=m.OpinionMode.REPORT)
    field = Field(toy_edges(2), given)
    boss, now = identity("coordinator"), field.kernel
    word = field.engine.run.vouching = SiteWord(boss, "home", lambda: b"der", lambda: now.now)
    field.run()
    run, task = given.run, given.task
    for edge, order in field.orders():
        for one in order.assignments:
            assert one.assigned == word.sign(Assigning(run, order.round, edge, one.agent, task))
    calls = [send.message for send in field.sent if isinstance(send.message, m.OpinionOpen)]
    assert {call.round for call in calls} == {1, 2}
    for call in calls:
        made = Calling(run, call.round, task, call.model, call.mode, call.slot)
        assert call.signed == word.sign(made)
    field.kernel.now += 1000.0
    before, wanted = len(field.sent), word.task(run, task)
    field.take(fx.WordRenewed())
    after = [(one.to, one.message) for one in field.sent[before:]]
    assert {edge for edge, _ in after} == {"edge-0", "edge-1"}
    for _, welcome in after:
        assert isinstance(welcome, m.EdgeWelcome)
        assert welcome.claim == wanted


OURS, OLDER, NEWER = 5, 4, 14
GIVEN, ASKED = "Revocations", "RevocationsNeed"


def has(number: int) -> m.EdgeStatus:
    return m.EdgeStatus(epoch="0" * 32, crl=number)


def shown(number: int) -> m.Revocations:
    return m.Revocations(number=number, crl=b"theirs")


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        ((has(0), has(OURS)), (GIVEN, "")),
        ((shown(OLDER), has(OLDER), shown(OLDER), has(OLDER)), ("", ASKED, GIVEN, GIVEN)),
        ((has(NEWER), shown(NEWER), has(NEWER)), (ASKED, "", "")),
        ((has(OLDER),) * (ASKS + 1), (ASKED,) * ASKS + (GIVEN,)),
    ],
    ids=["it has none", "an older one", "a newer one", "it never shows its own"],
)
def test_an_edge_shows_its_list_of_the_revoked_before_it_gets_ours(
    said: tuple[m.EdgeStatus | m.Revocations, ...], answers: tuple[str, ...]
) -> None:
    """A coordinator from a backup does not know who was revoked since."""
    field = Field(toy_edges(2), settings(count=1, wait_edges=2, wait_agents=6))
    field.hear("edge-0", field.edges[0].hello())
    field.take(Revoked(OURS, frozenset(), b"ours"))
    for message, answer in zip(said, answers, strict=True):
        sent = [type(one).__name__ for one in field.hear("edge-0", message)]
        assert [name for name in sent if name in (GIVEN, ASKED)] == [answer] * bool(answer)
    learnt = {one.crl for one in field.written if isinstance(one, fx.LearnRevocations)}
    assert learnt == ({b"theirs"} if shown(OLDER) in said or shown(NEWER) in said else set())
    before = len(field.sent)
    field.take(Revoked(NEWER + 1, frozenset({"a"}), b"both"))
    assert [type(one.message).__name__ for one in field.sent[before:]] == [GIVEN]


def test_who_is_observed_keeps_its_index_at_any_edge_and_strangers_get_none() -> None:
    indices = MemoryIndices()
    table, members = EdgeTable(indices), frozenset("abd")
    for edge, epoch, ids, wanted in (
        ("one", "1", "abc", [0, 1, -1]),
        ("two", "1", "cdb", [-1, 2, 1]),
        ("one", "2", "ba", [1, 0]),
    ):
        session, _ = table.hear(edge, epoch, 0.0, "")
        assert session.learn_ids(0, tuple(ids))
        rows = np.arange(len(ids), dtype=np.int32)
        assert session.clients(rows, indices, members).tolist() == wanted
    assert session.clients(rows, indices, members - {"a"}).tolist() == [1, -1], "it was revoked"
    assert indices.client_of == {"a": 0, "b": 1, "d": 2}


def test_an_order_to_all_who_are_observed_at_an_edge_can_be_sent() -> None:
    indices = MemoryIndices()
    edge, _ = EdgeTable(indices).hear("edge-1", "2", 0.0, "")
    ids = [f"{number:032x}" for number in range(2 * MAX_CLIENTS)]
    assert edge.learn_ids(0, tuple(ids))
    client = edge.clients(np.arange(len(ids), dtype=np.int32), indices, None)
    largest = 2**53 - 1
    work = m.Assignment(
        agent=ids[0],
        iterations=largest,
        price=MAX_MICRO,
        context_seq=largest,
        releases=largest,
        assigned=bytes(64),
    )
    order = m.RoundOrder(
        run="a" * 32,
        round=largest,
        task="b" * 64,
        assignments=tuple(
            structs.replace(work, agent=ids[row]) for row in np.flatnonzero(client >= 0)
        ),
        deadline_ms=1000,
        max_wait_ms=1000,
    )
    assert len(order.assignments) == MAX_CLIENTS
    assert len(encode(order)) < MAX_PAYLOAD_BYTES


def test_a_name_alone_gets_no_index_and_too_many_names_are_refused() -> None:
    table = EdgeTable(MemoryIndices())
    edge, _ = table.hear("edge-0", "e", 0.0, "")
    assert edge.learn_ids(0, tuple(f"{i}" for i in range(MAX_SESSIONS)))
    assert table.indices.sizes() == (0, 1)
    with pytest.raises(ProtocolError, match="more sessions"):
        edge.learn_ids(MAX_SESSIONS, ("one more",))
