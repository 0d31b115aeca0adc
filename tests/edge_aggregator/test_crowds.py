"""A table of agents holds so many; who is gone gives its place to who comes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol import messages as m
from fedagent_protocol.columns import unpack

from .evaluators import RUN, Hall

MOST = 24


@pytest.fixture(autouse=True)
def _small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MAX_AGENTS", MOST)


class Listener:
    """What a coordinator knows of an edge's agents, by what the edge tells it."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.epoch, self.round = "", 0
        self.ids: list[str] = []

    def observe(self) -> list[str]:
        """Open a round; return who has a row in the answer."""
        self.round += 1
        self.hall.tell(
            m.RoundOpen(run=RUN, round=self.round, epoch=self.epoch, known=len(self.ids))
        )
        said = self.hall.up(m.RoundColumns)[-1]
        self._learn(said)
        return [self.ids[row] for row in unpack(said).session.tolist()]

    def hear(self, said: m.RoundColumns | m.Volunteers | m.Opinions) -> None:
        self._learn(said)
        rows = memoryview(said.session).cast("i").tolist()
        assert all(row < len(self.ids) for row in rows)

    def _learn(self, said: m.RoundColumns | m.Volunteers | m.Opinions) -> None:
        if said.epoch != self.epoch:
            self.epoch, self.ids = said.epoch, []
        assert said.known == len(self.ids)
        self.ids += said.new_ids
        assert len(set(self.ids)) == len(self.ids) <= MOST


def _report(hall: Hall, agent: str, seq: int) -> None:
    hall.say(agent, m.ContextReport(seq=seq, available=True, price=1))


_who = st.integers(0, 3 * MOST)
_step = st.one_of(
    st.tuples(st.just("hello"), _who),
    st.tuples(st.just("report"), _who),
    st.tuples(st.just("bye"), _who),
    st.tuples(st.just("all"), st.integers(1, 3 * MOST)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 3.0, 20.0, 60.0])),
    st.tuples(st.just("welcome"), st.just(0)),
    st.tuples(st.just("observe"), st.just(0)),
    st.tuples(st.just("volunteers"), _who),
)


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(_step, max_size=25))
def test_whatever_agents_do_memory_is_bounded_and_those_here_are_heard(
    steps: list[tuple[str, Any]],
) -> None:
    hall = Hall()
    listener, rounds = Listener(hall), 0
    sessions = hall.core.sessions
    hall.hello("worker")
    for seq, (what, value) in enumerate(steps, 1):
        agent = f"stranger-{value}"
        match what:
            case "hello":
                hall.say(agent, m.Hello(name=f"n{seq}"))
            case "report":
                _report(hall, agent, seq)
            case "bye":
                hall.say(agent, m.Bye())
            case "all":
                for number in range(value):
                    _report(hall, f"stranger-{number}", seq)
            case "wait":
                hall.now += value
            case "welcome":
                sessions.welcomed()
            case "observe":
                _report(hall, "worker", seq)
                assert "worker" in listener.observe()
            case "volunteers":
                rounds += 1
                hall.open(rounds, mode="peers", epoch=listener.epoch, known=len(listener.ids))
                listener.hear(hall.up(m.Volunteers)[-1])
        hall.wait(0.0)
        _report(hall, "worker", seq)  # as it does every 15 s
        assert len(sessions.by_id) <= MOST
        assert len(sessions._index) <= MOST
        assert sessions._changed.keys() <= sessions.by_id.keys()
