"""Two devices with one identity: an alarm, and neither takes part."""

from pathlib import Path

from fedagent_edge.core.edge import CLONED
from fedagent_edge.core.sessions import FLAPS, MAX_FLAPPING, AgentSessions
from fedagent_node.effects import TakenOver

from .harness import field_of


def test_flaps_of_many_names_are_bounded_and_told_once() -> None:
    sessions = AgentSessions("0" * 32)
    for i in range(3 * MAX_FLAPPING):
        sessions.is_cloned(f"a{i}", 0.0, CLONED)
    assert len(sessions._flaps) == MAX_FLAPPING
    assert sum(sessions.is_cloned("a", float(i), CLONED) for i in range(3 * FLAPS)) == 1


def test_who_is_cloned_takes_part_no_more_and_the_coordinator_is_told_why(tmp_path: Path) -> None:
    f = field_of(tmp_path, 3).ready()
    (cloned, *_) = f.agents
    for _ in range(FLAPS):
        f.edge.receive(TakenOver(cloned))
    f.agents[cloned].hello(f)
    f.run_for(2.0)
    notes = {one.agent: one.reason for one in f.core.sessions.changed_devices(f.now)}
    assert notes.get(cloned, CLONED) == CLONED
    assert not f.core.sessions.is_present(cloned)
    assert f.core.counters["taken_over"] == FLAPS
    assert f.core.counters["cloned"] > 0
    f.order()
    report = f.run_until_report()
    assert {one.agent: one.used for one in report.outcomes} == {
        agent: agent != cloned for agent in f.agents
    }
