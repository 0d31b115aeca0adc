"""The engine calls clients to evaluate models: who counts, who is waited for, what is learnt."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.answers import Call
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.evaluating import MAX_TRAINED, Evaluating
from fedagent_coordinator.core.run import Phase
from fedagent_coordinator.core.settings import Evaluations, Settings
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies import create
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.policies.sets.arms import Slot
from fedagent_node.effects import Send
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from tests.fakes.engine_field import Field, begun, settings, toy_edges
from tests.fakes.rounds import nothing_played, random_feedback, random_view
from tests.fakes.toy_edge import ToyEdge

FIRST = begun(evaluations=Evaluations(pending=0))
PEERS = m.OpinionMode.PEERS


def asks(mode: m.OpinionMode = m.OpinionMode.REPORT, **changes: object) -> Settings:
    times = {"opinions_timeout_s": 3.0, "first_call_s": 0.0}
    return settings(**{"opinions": mode, **times, **changes})


def opinions_of(field: Field, round_: int) -> fx.BookEvaluation:
    return field.evaluated[round_]


def lie(edge: ToyEdge, **changes: object) -> None:
    """Let an edge change its honest answers."""
    honest = edge.answer

    def answer(call: m.OpinionOpen, now: float) -> m.Opinions | m.Volunteers | m.EdgeMoments:
        return msgspec.structs.replace(honest(call, now), **changes)

    edge.answer = answer  # type: ignore[method-assign]


def test_every_model_is_primary_metric_everybody_before_the_policy_learns_of_its_round() -> None:
    field = Field(toy_edges(2), settings=asks(), progress=FIRST)
    field.run()
    assert field.done == "rounds"
    assert list(field.evaluated) == [0, 1, 2, 3]
    assert list(field.feedbacks) == [1, 2, 3]
    agents = [agent for edge in field.edges for agent in edge.agents]
    for round_, found in field.evaluated.items():
        book = opinions_of(field, round_)
        assert (book.slot, book.asked, book.metric) == (round_ + 1, 6, "accuracy")
        assert book.reasons == {}
        assert found.client.tolist() == list(range(6))
    digests = [opinions_of(field, t).digest for t in field.evaluated]
    assert digests[1:] == field.committed
    learnt = field.feedbacks[3].opinions
    assert learnt is not None
    said = np.array([np.float32(a.opinion(digests[3])) for a in agents], dtype=np.float64)
    assert learnt.tolist() == said.tolist()
    assert opinions_of(field, 3).mean == pytest.approx(said.mean())
    assert field.said("opinions")[0]["mode"] == "report"


def test_a_run_without_a_call_refuses_a_policy_that_needs_one_and_names_the_hint() -> None:
    with pytest.raises(PolicyError, match=r'opinions\.mode = "report"'):
        Field(toy_edges(), settings=asks(PEERS), learning=Learning(create("ucb")))
    with pytest.raises(PolicyError, match=r'opinions\.mode = "peers"'):
        Field(toy_edges(), settings=asks(), learning=Learning(create("volunteers")))


def test_an_edge_that_says_nothing_is_given_up_and_its_late_answer_is_dropped() -> None:
    edges = toy_edges(2)
    edges[1].deaf = True
    field = Field(edges, settings=asks(count=2), progress=FIRST)
    field.run()
    assert field.done == "rounds"
    found = opinions_of(field, 0)
    assert found.reasons == {"edge": 3}
    assert (found.asked, len(found.client)) == (6, 3)
    assert 5.0 <= found.seconds <= 5.2  # the timeout and the grace
    calls = [call for call in edges[1].calls if call.round == 0]
    assert len(calls) == 3
    assert calls[0].until_ms > calls[1].until_ms > calls[2].until_ms
    assert 0 in edges[1].closed
    late = edges[1].answer(calls[0], 0.0)
    assert [type(message) for message in field.hear(edges[1].id, late)] == [m.OpinionsReceipt]
    assert list(field.evaluated) == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"score": b""},
        {"score": np.array([0.1, np.nan, 0.2], dtype="<f4").tobytes()},
        {"score": np.array([0.1, 1.01, 0.2], dtype="<f4").tobytes()},
        {"samples": np.array([1, 0, 1], dtype="<i8").tobytes()},
        {"epsilon": np.array([1, np.inf, 1], dtype="<f4").tobytes()},
        {"session": np.array([0, 1, 3], dtype="<i4").tobytes()},
        {"session": np.array([0, 1, 1], dtype="<i4").tobytes()},
        {"model": "f" * 64},
        {"known": 0, "new_ids": ("agent-0-0", "somebody-else")},
    ],
)
def test_what_cannot_be_an_answer_is_refused_and_counted(change: dict[str, object]) -> None:
    field = Field(toy_edges(2), settings=asks(count=1), progress=FIRST)
    liar = field.edges[1]
    lie(liar, **change)
    field.run()
    assert field.done == "rounds"
    assert field.engine.counters["opinions_refused"] >= 2
    for round_ in (0, 1):
        found = opinions_of(field, round_)
        assert set(found.edge.tolist()) == {0}
        # Nobody waits for what such an edge may say next.
        assert found.seconds < 1.0
    assert 1 in liar.opinion_receipts


def test_opinions_of_another_metric_do_not_mix_and_no_edge_decides_alone() -> None:
    field = Field(toy_edges(3), settings=asks(count=1, wait_edges=3), progress=FIRST)
    lie(field.edges[0], metric="r2")
    field.run()
    found = opinions_of(field, 1)
    assert (found.metric, found.reasons) == ("accuracy", {"metric": 3})
    assert 0 not in found.edge


def test_an_edge_may_name_any_reasons_but_the_books_keep_few_and_short_ones() -> None:
    field = Field(toy_edges(2), settings=asks(count=1), progress=FIRST)
    for edge in field.edges:
        many = {f"{edge.id}-{n}\x1b[31m" + "x" * 90: 1 for n in range(29)}
        lie(edge, reasons={"x" * 60 + "1": 3, "x" * 60 + "2": 4, **many})
    field.run()
    kept = opinions_of(field, 1).reasons
    assert len(kept) == 32
    assert max(kept.values()) == 2 * (3 + 4), "two are the same once they are shortened"
    assert not any("\x1b" in reason or len(reason) > 40 for reason in kept)


# --- volunteers --------------------------------------------------------------


def volunteers_field(edges: list[ToyEdge], **changes: object) -> Field:
    given = asks(PEERS, policy="volunteers", **changes)
    return Field(edges, settings=given, learning=Learning(create("volunteers")), progress=FIRST)


def test_agents_are_told_whether_their_update_is_in_the_model() -> None:
    edges = toy_edges(1, 4)
    for agent in edges[0].agents[2:]:
        agent.volunteers = False
    field = volunteers_field(edges, volunteers=2)

    hear = edges[0].receive

    def heard(message: m.CoordinatorToEdge, now: float) -> list[m.EdgeToCoordinator]:
        if isinstance(message, m.RoundOrder) and message.round == 1:
            # From now on another one: who trained in round 1 is not told of again.
            edges[0].agents[0].volunteers, edges[0].agents[2].volunteers = False, True
        return hear(message, now)

    edges[0].receive = heard  # type: ignore[method-assign]
    field.run()
    trained = {call.round: call.trained for call in edges[0].calls}
    assert trained == {0: (), 1: ("agent-0-0", "agent-0-1"), 2: ("agent-0-1", "agent-0-2")}


def test_a_call_names_as_many_that_trained_as_a_message_holds() -> None:
    names = frozenset(f"{n:064d}" for n in range(25_000))
    call = Call(
        mode=m.OpinionMode.PEERS, round=1, slot=2, digest="a" * 64, until=1.0, trained=names
    )
    run = Field(toy_edges(1, 2), settings=asks(PEERS)).engine.run
    run.edges.hear("edge", "0" * 32, 0.0, "")
    Evaluating(run, call, lambda _, __: Phase(run), 0.0).step(0.0)
    sent = run.to_do()[-1]
    assert isinstance(sent, Send)
    again = decode(Direction.COORDINATOR_TO_EDGE, encode(sent.message))
    assert isinstance(again, m.OpinionOpen)
    assert len(again.trained) == MAX_TRAINED


@pytest.mark.parametrize("edges", [1, 2])
def test_all_that_the_edges_see_are_enough_volunteers(edges: int) -> None:
    made = toy_edges(edges, 3)
    for edge in made:
        for one, same in zip(made[0].agents, edge.agents, strict=True):
            same.id = one.id
    field = volunteers_field(made, volunteers=5, wait_edges=edges, opinions_timeout_s=30.0)
    field.run()
    assert [found.asked for found in field.evaluated.values()] == [3, 3, 3]
    assert all(found.seconds < 1.0 for found in field.evaluated.values())


@examples(max_examples=40)
@given(played=st.lists(st.booleans(), max_size=30), rounds=st.integers(1, 4), each=st.booleans())
def test_every_slot_that_is_credited_ends_with_a_call(
    played: list[bool], rounds: int, *, each: bool
) -> None:
    """As far as `calls.check_slots` lets them: a call a round, or one a slot."""
    rng = np.random.default_rng(0)
    slot = Slot(rounds)
    schedule = Evaluations(mode=m.OpinionMode.REPORT, every=1 if each else rounds)
    view = random_view(rng, 1)
    somebody = explained(view, np.arange(1, dtype=np.int64))
    for at_all in played:
        feedback = random_feedback(rng, view, somebody) if at_all else nothing_played(view)
        credited = slot.advance(feedback)
        evaluated = schedule.is_due(merges=True, played=at_all, last=False)
        assert evaluated or not len(credited)
