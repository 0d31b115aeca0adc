"""An edge can neither invent, alter, repeat nor swap what devices say of a model."""

from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core import observation
from fedagent_coordinator.core.settings import Evaluations
from fedagent_protocol import messages as m
from fedagent_protocol.columns import claim_column, unpack
from fedagent_protocol.signed import Asked, claim_of, is_claim, terms
from tests.fakes.engine_field import MANIFEST, RUN, Field, begun, settings
from tests.fakes.toy_edge import ToyAgent, ToyEdge
from tests.fakes.voices import identity

DEVICES = {one.id: one for one in (identity(f"device-{i}") for i in range(6))}
IDS = list(DEVICES)
TASK, SITE = "e" * 64, "lab"
Answer = m.Opinions | m.Volunteers
Lie = Callable[[list[Answer], Answer], Answer]
"""Makes a lie of the honest answers of an edge's devices so far and of the newest."""


def claims_of(edge: ToyEdge, said: Answer, model: str) -> Answer:
    """Return an answer with what its devices sign."""
    asked = Asked(site=SITE, run=RUN, round=said.round, task=TASK, model=model)
    claims = []
    for row, index in enumerate(np.frombuffer(said.session, "<i4").tolist()):
        me = DEVICES[edge.agents[index].id]
        if isinstance(said, m.Opinions):
            score = float(np.frombuffer(said.score, "<f4")[row])
            samples = int(np.frombuffer(said.samples, "<i8")[row])
            data = asked.scored(me.id, said.metric, score, samples, 0.0)
        else:
            data = asked.volunteer(me.id, edge.id)
        claims.append(me.public_bytes + me.sign(data))
    return structs.replace(said, claim=claim_column(claims))


def _honest(_former: list[Answer], said: Answer) -> Answer:
    return said


class SigningEdge(ToyEdge):
    """An edge whose devices sign; what it says of them is what a test makes of it."""

    lie: Lie = staticmethod(_honest)

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        super().__init__(name, MANIFEST, [ToyAgent(one) for one in ids])
        self.honest: list[Answer] = []

    def columns(self, message: m.RoundOpen) -> m.RoundColumns:
        said = super().columns(message)
        told, claims = unpack(said), []
        rows = (told.session, told.context_seq, told.price, told.available)
        for index, seq, price, available in zip(*(row.tolist() for row in rows), strict=True):
            me = DEVICES[self.agents[index].id]
            signed = terms(self.id, me.id, seq=seq, price=price, available=available)
            claims.append(claim_of(me, signed))
        return structs.replace(said, claim=claim_column(claims))

    def answer(self, call: m.OpinionOpen, now: float) -> Answer | m.EdgeMoments:
        said = super().answer(call, now)
        assert not isinstance(said, m.EdgeMoments)
        self.honest.append(claims_of(self, said, call.model))
        told = self.lie(self.honest, self.honest[-1])
        if self.unheard is not None and isinstance(told, m.Opinions):
            self.unheard = told
        return told


def field_of(edges: Sequence[ToyEdge], *, peers: bool = False, certified: bool = True) -> Field:
    mode = m.OpinionMode.PEERS if peers else m.OpinionMode.REPORT
    times = {"opinions_timeout_s": 3.0, "first_call_s": 0.0, "volunteers": 6}
    given = settings(opinions=mode, site=SITE, task=TASK, **times)
    first = begun(evaluations=Evaluations(pending=0))
    field = Field(list(edges), given, progress=first)
    if certified:
        field.take(fx.Enrolled(frozenset(IDS)))
    return field


def scores(
    said: Answer, made: Callable[[np.ndarray[tuple[int], np.dtype[np.float32]]], object]
) -> Answer:
    assert isinstance(said, m.Opinions)
    told = np.asarray(made(np.frombuffer(said.score, "<f4").copy()), "<f4")
    return structs.replace(said, score=told.tobytes())


def swapped(said: Answer) -> Answer:
    """Every row says it is its neighbour's."""
    order = np.roll(np.frombuffer(said.session, "<i4"), 1).astype("<i4")
    return structs.replace(said, session=order.tobytes())


def signed_by(said: Answer, count: int) -> Answer:
    """Claims of a key of the edge's own."""
    evil = identity("evil")
    made = (evil.public_bytes + evil.sign(bytes([row])) for row in range(count))
    return structs.replace(said, claim=claim_column(list(made)))


def earlier(former: list[Answer], said: Answer) -> Answer:
    """The answer of the call before, as if it were of this round and model."""
    old, model = next((one for one in former[::-1] if one.round != said.round), said), {}
    if isinstance(said, m.Opinions):
        model = {"model": said.model}
    return structs.replace(old, round=said.round, known=said.known, new_ids=said.new_ids, **model)


LIES: dict[str, Lie] = {
    "altered": lambda _, said: scores(said, lambda score: np.where(score < 0.5, 1.0, 0.0)),
    "invented": lambda _, said: signed_by(said, 3),
    "stripped": lambda _, said: structs.replace(said, claim=b""),
    "swapped": lambda _, said: swapped(said),
    "another metric": lambda _, said: structs.replace(said, metric="kindness"),
}


@pytest.mark.parametrize(
    ("lie", "peers"),
    [*((lie, False) for lie in LIES), ("invented", True), ("stripped", True), ("swapped", True)],
)
def test_of_a_lying_edge_no_answer_is_used_and_it_is_said(lie: str, peers: bool) -> None:
    honest, liar = SigningEdge("honest", IDS[:3]), SigningEdge("liar", IDS[3:])
    liar.lie = LIES[lie]
    field = field_of([honest, liar], peers=peers)
    field.run()
    assert field.done == "rounds"
    for found in field.evaluated.values():
        assert found.edge.tolist() == [0, 0, 0]
        assert (found.asked, found.reasons) == (6, {"unsigned": 3})
    (said,) = field.said("suspicious")
    what = "volunteers" if peers else "opinions"
    assert said == {"edge": "liar", "name": "liar", "agents": 3, "what": what}


@pytest.mark.parametrize("honest", [True, False])
def test_who_two_edges_tell_of_is_one_whether_it_has_signed_or_not(honest: bool) -> None:
    edges = [SigningEdge("one", IDS[:3]), SigningEdge("two", IDS[:3])]
    for edge in edges[honest:]:
        edge.lie = LIES["stripped"]
    field = field_of(edges)
    field.run()
    assert field.evaluated
    for found in field.evaluated.values():
        assert found.edge.tolist() == [0, 0, 0] * honest
        assert (found.asked, found.reasons) == (3, {} if honest else {"unsigned": 3})


@pytest.mark.parametrize("peers", [False, True])
def test_what_was_said_of_an_earlier_model_is_not_said_of_this(peers: bool) -> None:
    honest, liar = SigningEdge("honest", IDS[:3]), SigningEdge("liar", IDS[3:])
    liar.lie = earlier
    field = field_of([honest, liar], peers=peers)
    field.run()
    counts = [sorted(found.edge.tolist()) for found in field.evaluated.values()]
    assert counts[0] == [0, 0, 0, 1, 1, 1]
    assert counts[1:] == [[0, 0, 0]] * (len(counts) - 1)
    assert len(counts) > 2


def test_a_volunteer_is_there_where_it_says() -> None:
    """Where an edge comes to what a device signed for another one, it is of no use to it."""
    honest = SigningEdge("honest", IDS[:3])
    thief = SigningEdge("thief", IDS[:3])
    thief.lie = lambda _, said: structs.replace(
        said, claim=honest.honest[-1].claim if honest.honest else b""
    )
    field = field_of([thief, honest], peers=True)
    field.run()
    assert all(found.edge.tolist() == [1, 1, 1] for found in field.evaluated.values())


def test_an_edge_that_shouts_is_checked_once_in_a_call() -> None:
    honest, liar = SigningEdge("honest", IDS[:3]), SigningEdge("liar", IDS[3:])
    field = field_of([honest, liar], peers=True)
    checked = mock.Mock(side_effect=is_claim)
    liar.lie = lambda _, said: signed_by(said, 3)

    def shout() -> None:
        for call in liar.calls[:1]:
            for _ in range(50):
                field.hear(liar.id, liar.answer(call, 0.0))

    field.kernel.after(0.05, shout)
    observation.signed_by.cache_clear()
    with mock.patch.object(observation, "is_claim", checked):
        field.run()
    assert checked.call_count == 6 * len(field.evaluated)


@pytest.mark.parametrize("certified", [False, True])
def test_who_signs_nothing_is_believed_only_where_anybody_may_come(certified: bool) -> None:
    edge = SigningEdge("edge", IDS[:3])
    signs_from = 2
    edge.lie = lambda _, said: (
        said if said.round == signs_from else structs.replace(said, claim=b"")
    )
    field = field_of([edge], certified=certified)
    field.run()
    counts = [len(found.client) for found in field.evaluated.values()]
    assert counts == ([0, 0, 3, 0] if certified else [3, 3, 3, 3])
