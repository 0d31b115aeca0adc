"""Sessions and columns: what the coordinator is told of the agents an edge can see."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_edge.core.effects import Ignored
from fedagent_edge.core.sessions import (
    ANSWER_S,
    ASK_AGAIN_S,
    FLAPS,
    LEFT_OUT_S,
    MAX_FEATURES,
    MAX_NOTES,
    AgentSessions,
)
from fedagent_node.effects import CLONED, TakenOver
from fedagent_protocol import messages as m
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, encode
from fedagent_protocol.columns import unpack

from . import harness
from .harness import field_of

EPOCH = "0" * 32


def _sessions(count: int, **features: float) -> AgentSessions:
    sessions = AgentSessions(EPOCH)
    for index in range(count):
        _report(sessions, f"agent-{index}", 0.0, price=index, features=features)
    return sessions


def _report(
    sessions: AgentSessions,
    agent: str,
    now: float,
    *,
    price: int = 1,
    features: dict[str, float] | None = None,
) -> None:
    session, _ = sessions.hear(agent, now)
    assert session is not None
    report = m.ContextReport(seq=1, available=True, price=price, features=features or {})
    sessions.context(session, report, now)


def _named(sessions: AgentSessions, now: float) -> dict[str, int]:
    """Return who has a row for a coordinator that knows nobody, and the index of each."""
    message = sessions.columns(m.RoundOpen(), model="", now=now)
    return {message.new_ids[row]: row for row in unpack(message).session.tolist()}


def test_columns_carry_every_fresh_context() -> None:
    sessions = _sessions(3, compute=2.0)
    _report(sessions, "agent-1", 5.0, price=7, features={"compute": 3.0, "rtt_s": 0.1})
    message = sessions.columns(m.RoundOpen(round=4), model="", now=6.0)
    columns = unpack(message)
    assert message.round == 4
    assert message.new_ids == ("agent-0", "agent-1", "agent-2")
    assert columns.features == ("compute", "rtt_s")
    assert columns.price.tolist() == [0, 7, 2]
    assert columns.age_ms.tolist() == [6000, 1000, 6000]
    assert np.isnan(columns.values[0, 1])
    assert columns.values[1].tolist() == [3.0, pytest.approx(0.1)]


def test_who_does_not_answer_is_away_until_it_is_heard_again() -> None:
    sessions = _sessions(3)
    assert sessions.next_answer == math.inf
    assert [sessions.doubt(agent, 1.0) for agent in ("agent-0", "agent-1", "unknown")] == [1, 1, 0]
    assert not sessions.doubt("agent-0", 2.0), "once"
    assert sessions.next_answer == 1.0 + ANSWER_S
    sessions.hear("agent-1", 2.0)
    assert sessions.unanswered(3.9) == []
    sessions.changed_devices(3.9)
    assert sessions.unanswered(4.0) == ["agent-0"]
    assert not sessions.doubt("agent-0", 5.0)
    (note,) = sessions.changed_devices(5.0)
    assert (note.agent, note.here, note.age_ms) == ("agent-0", False, 5000)
    assert _named(sessions, 5.0).keys() == {"agent-1", "agent-2"}
    assert sessions.present == 2
    assert sessions.is_present("agent-0"), "what it has begun may still come"
    assert sessions.hear("agent-0", 6.0) == (sessions.by_id["agent-0"], False)
    assert [note.here for note in sessions.changed_devices(6.0)] == [True]
    assert len(_named(sessions, 6.0)) == 3
    assert not sessions.doubt("agent-0", 6.0), "it was asked just now"
    assert sessions.doubt("agent-0", 1.0 + ASK_AGAIN_S)
    sessions.leave("agent-0")
    assert sessions.unanswered(99.0) == []


def test_one_agent_cannot_push_out_the_features_of_the_others() -> None:
    sessions = _sessions(2, compute=1.0)
    _report(sessions, "hostile", 0.0, price=1, features={f"a{i}": 1.0 for i in range(MAX_FEATURES)})
    columns = unpack(sessions.columns(m.RoundOpen(), model="", now=1.0))
    assert "compute" in columns.features
    assert len(columns.features) == MAX_FEATURES


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_reported_value_can_make_the_columns_malformed(value: float) -> None:
    sessions = _sessions(1, compute=value)
    columns = unpack(sessions.columns(m.RoundOpen(), model="", now=1.0))
    assert not np.isinf(columns.values).any()


def test_very_many_agents_fit_into_one_message_and_the_rest_follows() -> None:
    sessions = AgentSessions(EPOCH)
    for index in range(m.MAX_AGENTS):
        _report(sessions, f"{index:032x}", 0.0, price=1, features={f"f{i}": 1.0 for i in range(10)})
    with pytest.raises(Ignored, match="too_many_agents"):
        sessions.hear("one-too-many", 0.0)
    ids: list[str] = []
    for turn in range(10):
        now = float(turn)
        message = sessions.columns(m.RoundOpen(epoch=EPOCH, known=len(ids)), model="", now=now)
        assert len(encode(message)) <= MAX_PAYLOAD_BYTES
        rows = unpack(message).session.tolist()
        ids += message.new_ids
        assert len(rows) == len(message.new_ids) or len(ids) == m.MAX_AGENTS
        for agent in sessions.present_ids()[len(ids) :]:
            _report(sessions, agent, now + 0.5)  # as everybody does, now and then
    assert len(set(ids)) == len(ids) == m.MAX_AGENTS


def _refuse(sessions: AgentSessions, agent: str, reason: str, seq: int) -> None:
    session, _ = sessions.hear(agent, 1.0)
    assert session is not None
    report = m.ContextReport(seq=seq, available=not reason, price=1, reason=reason)
    sessions.context(session, report, 1.0)


def test_why_a_device_does_not_want_to_train_is_news_but_not_each_new_number() -> None:
    sessions = _sessions(1)
    sessions.changed_devices(1.0)
    said = []
    for seq, reason in enumerate(
        ("12 % of charge", "11 % of charge", "it is hot", "", ""), start=2
    ):
        _refuse(sessions, "agent-0", reason, seq)
        said.append([note.reason for note in sessions.changed_devices(1.0)])
    assert said == [["12 % of charge"], [], ["it is hot"], [""], []]


def test_a_hundred_thousand_words_of_devices_fit_into_messages() -> None:
    """However long what they say is, with as many long names beside it."""
    sessions, wide = AgentSessions(EPOCH), "\N{GREEK SMALL LETTER ALPHA}" * 500
    for index in range(MAX_NOTES + 1):
        agent = f"{index:064d}"
        _refuse(sessions, agent, wide, 1)
        about = sessions.by_id[agent]
        sessions.greet(about, m.Hello(name=wide[:100], software=wide, address=wide[:64]))
    counts = []
    while sessions.has_changes:
        notes = sessions.changed_devices(1.0)
        word = encode(m.EdgeStatus(epoch=EPOCH, devices=notes))
        assert len(word) <= MAX_PAYLOAD_BYTES
        counts.append(len(notes))
    assert counts == [MAX_NOTES, 1]


@pytest.mark.parametrize("events", [FLAPS * (False,), (True,)])
def test_who_is_cloned_takes_no_part_while_it_is_and_the_coordinator_is_told_why(
    tmp_path: Path, events: tuple[bool, ...]
) -> None:
    f = field_of(tmp_path, 3).ready()
    (cloned, *_) = f.agents
    for sure in events:
        f.edge.receive(TakenOver(cloned, sure))
    f.agents[cloned].hello(f)
    f.run_for(2.0)
    notes = {one.agent: one.reason for one in f.core.sessions.changed_devices(f.now)}
    assert notes.get(cloned, f"cloned: {CLONED}") == f"cloned: {CLONED}"
    assert not f.core.sessions.is_present(cloned)
    assert f.core.counters["taken_over"] == len(events)
    assert f.core.counters["cloned"] > 0
    f.order()
    report = f.run_until_report()
    assert {one.agent: one.used for one in report.outcomes} == {
        agent: agent != cloned for agent in f.agents
    }
    f.run_for(LEFT_OUT_S)
    assert f.core.sessions.is_present(cloned), "there is one again"


def test_an_idle_device_that_is_ordered_has_time_to_answer_and_a_dead_one_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = field_of(tmp_path, 2)
    for agent in f.agents.values():
        agent._hellos += 1  # no report of its own
        f.to_edge(agent.id, m.ContextReport(seq=9, available=True, price=5, period_ms=90_000))
    f.run_for(80.0)
    f.run_for(f.core.timers._timers["search"][0] - f.now - 0.1)
    monkeypatch.setattr(harness, "DELAY_S", 1.0)
    f.agents["a1"].silent = True
    f.order(deadline_ms=90_000, max_wait_ms=90_000, min_updates=2)
    report = f.run_until_report(max_s=95.0)
    ends = {one.agent: (str(one.status), one.tau_ms < 30_000) for one in report.outcomes}
    assert ends == {"a0": ("arrived", True), "a1": ("gone", True)}
