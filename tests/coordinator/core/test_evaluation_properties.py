"""Whatever gets lost, comes twice, dies or comes back: what is booked of a model is true."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.answers import EvaluationSchedule, by_client
from fedagent_coordinator.core.settings import PastEvaluations
from fedagent_coordinator.policies import create
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.policies.sets.arms import Slot
from fedagent_protocol import messages as m
from tests.fakes.engine_field import Field, MemoryIndices, Plan, toy_edges
from tests.fakes.engine_field import settings as run_settings
from tests.fakes.rounds import nothing_played, random_feedback, random_view
from tests.fakes.toy_edge import ToyAgent, ToyEdge

MODES = [m.OpinionMode.REPORT, m.OpinionMode.PEERS]


def troubled(rng: np.random.Generator, loss: float) -> Plan:
    """Lose, repeat and delay messages."""

    def plan(kind: str) -> list[float]:
        copies = int(rng.random() >= loss) + int(rng.random() < 0.2)
        late = 4.0 if kind in {"opinions", "volunteers"} and rng.random() < 0.1 else 0.0
        return [float(rng.uniform(0.001, 0.3)) + late for _ in range(copies)]

    return plan


def trouble(field: Field, rng: np.random.Generator) -> None:
    """Let edges restart, fall silent, and come back at random times."""

    def restart(edge: ToyEdge) -> None:
        edge.restart()
        rng.shuffle(edge.agents)

    def mute(edge: ToyEdge) -> None:
        edge.mute = not edge.mute

    for edge in field.edges:
        for when in rng.uniform(0.5, 30.0, size=2):
            field.kernel.after(float(when), lambda edge=edge: restart(edge))  # type: ignore[misc] # a bound default
        start = float(rng.uniform(0.5, 20.0))
        for when in (start, start + float(rng.uniform(1.0, 25.0))):
            field.kernel.after(when, lambda edge=edge: mute(edge))  # type: ignore[misc] # a bound default


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    mode=st.sampled_from(MODES),
    every=st.integers(1, 3),
)
def test_what_is_booked_is_what_agents_said(
    seed: int, loss: float, mode: m.OpinionMode, every: int
) -> None:
    rng = np.random.default_rng(seed)
    edges = toy_edges(2, 3)
    edges[1].agents.append(ToyAgent(edges[0].agents[0].id))
    report = mode is m.OpinionMode.REPORT
    for agent in (agent for edge in edges for agent in edge.agents):
        agent.samples = int(rng.integers(0, 3))
        agent.volunteers = bool(rng.random() < 0.7)
    given_settings = run_settings(
        opinions=mode,
        opinions_every=every,
        opinions_timeout_s=3.0,
        first_call_s=0.0,
        volunteers=3,
        count=6,
    )
    policy = create("random" if report else "volunteers")
    field = Field(
        edges,
        given_settings,
        policy,
        plan=troubled(rng, loss),
        past=PastEvaluations(pending_round=0),
    )
    trouble(field, rng)
    field.run(until=900.0)
    assert field.end == "rounds"
    assert field.learnt == sorted(field.settled)
    indices = field.engine.run.indices
    assert isinstance(indices, MemoryIndices)
    name = {index: agent for agent, index in indices.client_of.items()}
    for round_, found in field.evaluated.items():
        clients = found.client.tolist()
        assert len(set(clients)) == len(clients) <= found.asked
        assert found.seconds <= 3.0 + 2.0 + 0.1
        if isinstance(found, fx.BookOpinions):
            said = [np.float32(ToyAgent(name[c]).opinion(found.digest)) for c in clients]
            assert found.score.tolist() == said
            if round_:
                learnt = field.feedbacks[round_].opinions
                assert learnt is not None
                size = len(learnt)
                expected = by_client(found.client, found.score, size)
                assert np.array_equal(learnt, expected, equal_nan=True)
    if report:
        assert list(field.evaluated) == [0, *range(every, 7, every)]
    chosen = {
        t: set(r.view.pair_client[r.selection.pairs].tolist()) for t, r in field.reserved.items()
    }
    if not report:
        for t, clients_ in chosen.items():
            newest = max(round_ for round_ in field.evaluated if round_ < t)
            assert clients_ <= set(field.evaluated[newest].client.tolist())


@given(
    played=st.lists(st.booleans(), max_size=30),
    rounds=st.integers(1, 4),
    each=st.booleans(),
)
def test_every_slot_that_is_credited_ends_with_a_call(
    played: list[bool], rounds: int, *, each: bool
) -> None:
    """As far as `calls.check_slots` lets them: a call a round, or one a slot."""
    rng = np.random.default_rng(0)
    slot = Slot(rounds)
    schedule = EvaluationSchedule(m.OpinionMode.REPORT, 1 if each else rounds)
    view = random_view(rng, 1)
    somebody = explained(view, np.arange(1, dtype=np.int64))
    for at_all in played:
        feedback = random_feedback(rng, view, somebody) if at_all else nothing_played(view)
        credited = slot.advance(feedback)
        evaluated = schedule.is_due(merges=True, played=at_all, last=False)
        assert evaluated or not len(credited)
