"""Keys cost nothing: whatever strangers do, who comes is heard, and who works keeps its place."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_edge.core import sessions as sessions_
from fedagent_edge.core.effects import LAN
from fedagent_edge.core.sessions import FRESH_S
from fedagent_node.effects import Received
from fedagent_protocol import messages as m
from fedagent_protocol.columns import unpack

from .evaluators import MODEL, RUN, Hall
from .harness import field_of

MOST, AT_ONCE = 24, 4


@pytest.fixture(autouse=True)
def _small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_, "MAX_AGENTS", MOST)
    monkeypatch.setattr(sessions_, "SPARE", AT_ONCE, raising=False)


class Listener:
    """What a coordinator knows of an edge's agents, by what the edge tells it."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.epoch, self.epochs = "", 0
        self.ids: list[str] = []
        self.round = 0

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
            self.epochs += 1
        assert said.known == len(self.ids)
        self.ids += said.new_ids
        assert len(set(self.ids)) == len(self.ids) <= MOST


def _report(hall: Hall, agent: str, seq: int) -> None:
    hall.say(agent, m.ContextReport(seq=seq, available=True, price=1))


def _strangers(hall: Hall, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        hall.say(f"stranger-{number}", m.Hello(agent=f"stranger-{number}", name="x"))


def test_a_table_full_of_keys_that_are_gone_gives_their_places_back() -> None:
    hall = Hall()
    _strangers(hall, MOST)
    hall.wait(FRESH_S + 10)
    hall.hello("honest")
    assert hall.down("honest", m.Welcome)
    _report(hall, "honest", 1)
    assert Listener(hall).observe() == ["honest"]


def test_a_newcomer_is_heard_at_once_where_strangers_keep_all_keys_alive() -> None:
    hall = Hall()
    for seq in range(1, 21):
        for number in range(2 * MOST):
            _report(hall, f"stranger-{number}", seq)
        hall.now += 5.0
    hall.hello("honest")
    _report(hall, "honest", 1)
    assert "honest" in Listener(hall).observe()
    assert hall.core.counters["too_many_agents"] == 0
    assert hall.core.counters["agents_displaced"] > 0


def test_who_has_worked_keeps_its_place_and_its_index(tmp_path: Any) -> None:
    field = field_of(tmp_path, 2)
    field.order()
    field.run_until_report()
    sessions = field.core.sessions
    before = unpack(sessions.columns(m.RoundOpen(run=RUN), model="", now=field.now)).session
    for number in range(4 * MOST):
        name = f"stranger-{number}"
        field.core.receive(Received(name, m.Hello(agent=name), LAN, field.now), field.now)
    assert all(sessions.is_present(agent) for agent in field.agents)
    after = unpack(sessions.columns(m.RoundOpen(run=RUN), model="", now=field.now)).session
    assert after.tolist() == before.tolist()
    assert sessions.present <= MOST


def test_who_works_on_a_round_keeps_its_place_before_its_first_update(tmp_path: Any) -> None:
    field = field_of(tmp_path, 2)
    field.order()
    for number in range(4 * MOST):
        name = f"stranger-{number}"
        field.core.receive(Received(name, m.Hello(agent=name), LAN, field.now), field.now)
    assert all(one.used for one in field.run_until_report().outcomes)


def test_who_lost_its_place_is_said_to_be_away_and_its_name_is_forgotten() -> None:
    hall = Hall()
    _strangers(hall, MOST)
    hall.wait(FRESH_S - 20.0)
    told = [note for one in hall.up(m.EdgeStatus) for note in one.devices]
    assert {note.agent for note in told if note.here} == {f"stranger-{n}" for n in range(MOST)}
    hall.hello("honest")
    hall.wait(6.0)
    notes = [note for one in hall.up(m.EdgeStatus) for note in one.devices][len(told) :]
    gone = {note.agent for note in notes if not note.here}
    assert len(gone) == AT_ONCE
    sessions = hall.core.sessions
    assert not gone & sessions._names.keys()
    assert [note.agent for note in notes if note.here] == ["honest"]


def test_a_list_that_is_full_is_followed_by_one_of_those_who_are_here() -> None:
    hall = Hall()
    listener = Listener(hall)
    for wave in range(6):
        for number in range(MOST // 2):
            _report(hall, f"stranger-{wave}-{number}", 1)
        _report(hall, "honest", wave + 1)
        seen = listener.observe()
        assert "honest" in seen
        hall.now += FRESH_S + 1.0
    assert listener.epochs > 1
    status = hall.up(m.EdgeStatus)
    hall.wait(1.0)
    assert hall.up(m.EdgeStatus)[len(status) :][-1].epoch == listener.epoch


@pytest.mark.parametrize("mode", ["report", "peers"])
def test_an_answer_of_one_that_lost_its_place_counts_as_before(mode: str) -> None:
    hall = Hall()
    listener = Listener(hall)
    hall.hello("early", "other")
    hall.open(mode=mode, until_ms=20_000)
    hall.opinion("early") if mode == "report" else hall.volunteer("early")
    for number in range(3 * MOST):
        _report(hall, f"stranger-{number}", 1)
        hall.now += 0.01
    assert not hall.core.sessions.is_present("early")
    hall.wait(21.0)
    said = hall.up(m.Opinions)[-1] if mode == "report" else hall.up(m.Volunteers)[-1]
    listener.hear(said)
    assert [listener.ids[row] for row in memoryview(said.session).cast("i").tolist()] == ["early"]


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
    st.tuples(st.just("newcomer"), st.integers(0, 5)),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(_step, max_size=25))
def test_whatever_strangers_do_the_honest_are_heard_and_memory_is_bounded(
    steps: list[tuple[str, Any]],
) -> None:
    hall = Hall()
    listener, rounds = Listener(hall), 0
    sessions = hall.core.sessions
    hall.hello("worker")
    sessions.worked("worker")
    _report(hall, "worker", 0)
    for seq, (what, value) in enumerate(steps, 1):
        stranger = f"stranger-{value}"
        match what:
            case "hello":
                hall.say(stranger, m.Hello(agent=stranger, name=f"n{seq}"))
            case "report":
                _report(hall, stranger, seq)
            case "bye":
                hall.say(stranger, m.Bye())
            case "all":
                for number in range(value):
                    _report(hall, f"stranger-{number}", seq)
            case "wait":
                hall.now += value
            case "welcome":
                sessions.welcomed()
            case "observe":
                assert "worker" in listener.observe()
            case "volunteers":
                rounds += 1
                hall.open(rounds, mode="peers", epoch=listener.epoch, known=len(listener.ids))
                listener.hear(hall.up(m.Volunteers)[-1])
            case "newcomer":
                hall.hello(f"newcomer-{value}")
                _report(hall, f"newcomer-{value}", seq)
                assert sessions.is_present(f"newcomer-{value}")
                assert f"newcomer-{value}" in listener.observe()
        hall.wait(0.0)
        _report(hall, "worker", seq)  # as it does every 15 s
        assert sessions.is_present("worker")
        _check_bounds(hall)


def _check_bounds(hall: Hall) -> None:
    sessions = hall.core.sessions
    assert len(sessions._by_id) <= MOST
    assert len(sessions._index) <= MOST
    assert sessions._names.keys() <= sessions._by_id.keys()
    assert sessions._unreported.keys() <= sessions._by_id.keys()
    assert sessions._asked.keys() <= sessions._by_id.keys()
    assert len(sessions._changed) <= 3 * MOST


@settings(max_examples=60, deadline=None)
@given(
    heard=st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.booleans()), min_size=MOST),
    busy=st.sets(st.integers(0, MOST - 1)),
)
def test_the_longest_silent_go_first_and_who_works_never(
    heard: list[tuple[float, bool, bool]], busy: set[int]
) -> None:
    sessions = sessions_.AgentSessions("e" * 32)
    for number, (at, worked, left) in enumerate(heard[:MOST]):
        sessions.hear(str(number), at)
        if worked:
            sessions.worked(str(number))
        if left:
            sessions.leave(str(number))
    facts = {a: (s.present, s.worked, s.heard_at) for a, s in sessions._by_id.items()}
    assert sessions.lacks_room("newcomer")
    assert not sessions.lacks_room("0")
    here = sessions.displace({str(one) for one in busy}, 100.0)
    gone = facts.keys() - sessions._by_id.keys()
    assert set(here) == {agent for agent in gone if facts[agent][0]}
    stays = {a for a, (present, worked, _) in facts.items() if present and worked}
    stays |= {str(one) for one in busy}
    assert not gone & stays
    assert len(gone) == min(AT_ONCE, MOST - len(stays))
    rest = [facts[agent] for agent in sessions._by_id.keys() - stays]
    assert all(facts[one] <= other for one in gone for other in rest)


def test_only_those_who_work_fill_a_table_for_good() -> None:
    hall = Hall()
    for number in range(MOST):
        hall.hello(f"worker-{number}")
        hall.core.sessions.worked(f"worker-{number}")
    hall.hello("one-too-many")
    assert hall.core.counters["too_many_agents"] == 1
    hall.say("worker-3", m.Bye())
    hall.hello("one-too-many")
    assert hall.core.sessions.is_present("one-too-many")


def test_what_is_served_to_one_that_lost_its_place_is_given_up() -> None:
    hall = Hall()
    hall.hello("early")
    hall.open(until_ms=60_000)
    hall.say("early", m.Need(run=RUN, round=1, digest=MODEL, ranges=((0, 1),)))
    for number in range(3 * MOST):
        _report(hall, f"stranger-{number}", 1)
    hall.wait(61.0)
    told = hall.up(m.Opinions)[-1]
    assert told.reasons == {"gone": 3 * MOST + 1}


def test_who_lost_its_place_and_comes_back_by_a_context_is_asked_to_greet() -> None:
    hall = Hall()
    hall.hello("honest")
    _report(hall, "honest", 1)
    assert not hall.down("honest", m.EdgeBeacon)
    hall.now += 1.0
    _strangers(hall, 2 * MOST)
    assert "honest" not in hall.core.sessions._by_id
    _report(hall, "honest", 2)
    _report(hall, "honest", 3)
    assert [(one.edge, one.epoch) for one in hall.down("honest", m.EdgeBeacon)] == [("edge", "")]
    hall.say("honest", m.Hello(agent="honest", name="kitchen", prepares=True))
    session = hall.core.sessions._by_id["honest"]
    assert session.prepares
    assert hall.core.sessions._names["honest"] == "kitchen"
    hall.say("honest", m.Bye())
    _report(hall, "honest", 4)
    assert len(hall.down("honest", m.EdgeBeacon)) == 1
