"""An edge hands requests for the events of its devices on, and answers to who asked."""

from pathlib import Path

from fedagent_edge.core.logs import MOST_ASKED
from fedagent_node.effects import Effect, Send
from fedagent_protocol import messages as m

from .harness import RUN, Field, field_of


def sent(effects: list[Effect]) -> list[tuple[str, m.AnyMessage]]:
    return [(one.to, one.message) for one in effects if isinstance(one, Send)]


def asked(f: Field, agent: str, number: int) -> list[tuple[str, m.AnyMessage]]:
    return sent(f.core.logs.ask(m.LogNeed(run=RUN, agent=agent, number=number)))


def test_a_request_reaches_the_device_that_is_here_and_its_answer_the_coordinator(
    tmp_path: Path,
) -> None:
    f = field_of(tmp_path, 2).ready()
    agent, other, *_ = f.agents
    f.coordinator(m.LogNeed(run=RUN, agent=agent, number=7, last=20))
    f.run_for(0.1)
    wanted = m.LogNeed(run=RUN, agent=agent, number=7, last=20)
    assert [one for one in f.agents[agent].heard if isinstance(one, m.LogNeed)] == [wanted]
    assert not any(isinstance(one, m.LogNeed) for one in f.agents[other].heard)
    entries = (m.LogEntry(name="ordered", fields={"round": 1}),)
    tail = m.LogTail(agent=agent, number=7, entries=entries)
    assert sent(f.core.logs.answer(agent, tail)) == [
        ("", m.LogTail(run=RUN, agent=agent, number=7, entries=entries))
    ]
    assert sent(f.core.logs.answer(agent, tail)) == [], "once"
    assert f.core.counters["log_unasked"] == 1


def test_nobody_answers_unasked_or_for_somebody_else(tmp_path: Path) -> None:
    f = field_of(tmp_path, 2).ready()
    agent, other, *_ = f.agents
    assert asked(f, "elsewhere", 6) == [], "another edge has it, or none"
    assert asked(f, agent, 7)
    for who, tail in (
        (other, m.LogTail(agent=agent, number=7)),
        (other, m.LogTail(agent=other, number=7)),
        (agent, m.LogTail(agent=agent, number=8)),
    ):
        f.to_edge(who, tail)
    f.run_for(0.1)
    assert f.core.counters["log_unasked"] == 3
    assert asked(f, agent, 9)
    assert sent(f.core.logs.answer(agent, m.LogTail(agent=agent, number=7))), "both may ask"
    f.core.logs.left(agent)
    assert sent(f.core.logs.answer(agent, m.LogTail(agent=agent, number=9))) == []


def test_requests_that_nobody_answers_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    f = field_of(tmp_path, 1).ready()
    agent, *_ = f.agents
    for number in range(MOST_ASKED + 1):
        assert asked(f, agent, number)
    assert sent(f.core.logs.answer(agent, m.LogTail(agent=agent, number=0))) == []
    assert sent(f.core.logs.answer(agent, m.LogTail(agent=agent, number=1)))
