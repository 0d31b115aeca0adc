"""Who is revoked in the middle of a round is void once; agents get the authority's list."""

from collections import Counter
from pathlib import Path

from fedagent_edge.core.edge import CRL_AGAIN_S
from fedagent_edge.core.effects import COORDINATOR, LAN, WAN
from fedagent_node.effects import EVERYBODY, Received, Revoked, Send, TakeRevocations
from fedagent_protocol import messages as m

from .harness import Field, field_of

CRL = b"the list"


def need(f: Field, agent: str, number: int) -> list[m.AnyMessage]:
    asked = Received(agent, m.RevocationsNeed(number=number), LAN, f.now)
    effects = f.core.receive(asked, f.now)
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_an_agent_revoked_with_an_open_order_is_void_once_and_the_others_are_paid(
    tmp_path: Path,
) -> None:
    f = field_of(tmp_path, 3).ready()
    gone, *_ = f.agents
    f.agents[gone].work_s = 30.0
    f.order()
    f.run_for(0.5)
    assert f.core.state.live, "its round is open"
    for _ in range(2):
        f.edge.receive(Revoked(1, frozenset({gone}), CRL))
    report = f.run_until_report()
    outcomes = {one.agent: one.status for one in report.outcomes}
    assert Counter(one.agent for one in report.outcomes)[gone] == 1
    assert outcomes.pop(gone) is m.OutcomeStatus.GONE
    assert set(outcomes.values()) == {m.OutcomeStatus.ARRIVED}
    assert f.core.counters["agents_revoked"] == 1


def test_agents_get_the_list_that_a_beacon_names_and_not_too_often(tmp_path: Path) -> None:
    f = field_of(tmp_path, 2).ready()
    agent, *_ = f.agents
    assert need(f, agent, 0) == [], "there is none yet"
    effects = f.core.receive(Revoked(3, frozenset(), CRL), f.now)
    beacons = [e.message for e in effects if isinstance(e, Send) and e.to == EVERYBODY]
    assert [one.crl for one in beacons if isinstance(one, m.EdgeBeacon)] == [3]
    assert need(f, agent, 3) == [], "it has it"
    assert need(f, agent, 2) == [m.Revocations(number=3, crl=CRL)], "but not whose they are"
    assert need(f, agent, 2) == []
    f.run_for(CRL_AGAIN_S)
    assert need(f, agent, 2) == [m.Revocations(number=3, crl=CRL)]


def test_a_list_of_the_coordinator_is_taken_if_it_is_newer(tmp_path: Path) -> None:
    f = field_of(tmp_path, 1).ready()
    f.core.receive(Revoked(3, frozenset(), CRL), f.now)
    for number, taken in ((2, []), (3, []), (4, [TakeRevocations(CRL)])):
        shown = Received(COORDINATOR, m.Revocations(number=number, crl=CRL), WAN, f.now)
        assert f.core.receive(shown, f.now) == taken
