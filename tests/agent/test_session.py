"""Sessions: hello, beacons and their loss, links that move, reports and probes."""

from pathlib import Path

import pytest

from fedagent_agent.core.device import PriceSettings, Readings
from fedagent_agent.core.effects import Greet, Relink
from fedagent_node.effects import Received, Revoked, TakeRevocations
from fedagent_protocol import messages as m
from tests.fakes.hand_edge import EDGE, LINK, OTHER, HandEdge, joined


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return HandEdge(tmp_path)


def quiet(edge: HandEdge) -> None:
    """Answer every probe, so that only reports are left."""
    session = edge.core.sessions[EDGE]
    while session.probe is not None:
        edge.now += 0.002
        probe = edge.said(m.Probe)[-1]
        edge.say(m.ProbeReply(nonce=probe.nonce, data=bytes(probe.reply_bytes)))


def test_who_connects_greets_all_edges_of_a_broker_and_waits_for_no_beacon(edge: HandEdge) -> None:
    assert [one.link for one in edge.jobs(Greet)] == [LINK]
    edge.say(m.Welcome(edge=EDGE))
    assert edge.said(m.ContextReport)
    assert not edge.said(m.Hello), "once is enough"


def test_a_hello_without_an_answer_is_repeated_ever_less_often(edge: HandEdge) -> None:
    edge.say(m.EdgeBeacon(edge=EDGE, period_ms=60_000))
    edge.later(60.0)
    assert len(edge.said(m.Hello)) == 6, "after 0, 1, 3, 7, 15 and 31 s"


def test_three_silent_periods_end_the_session_and_renew_the_link(edge: HandEdge) -> None:
    edge.say(m.EdgeBeacon(edge=EDGE, period_ms=1000))
    edge.say(m.Welcome(edge=EDGE, period_ms=1000))
    edge.later(2.9)
    assert not edge.events("edge_lost")
    edge.later(0.2)
    assert edge.events("edge_lost") == [{"edge": EDGE}]
    assert edge.jobs(Relink) == [Relink(LINK)]
    edge.join()
    assert len(edge.events("edge_joined")) == 2


def test_what_neighbours_send_which_nobody_signs_is_no_sign_of_an_edge(edge: HandEdge) -> None:
    forged = m.PeerDeliver(sender="agent-2", body=b"forged")
    edge.say(forged)
    assert EDGE not in edge.core.sessions
    edge.join()
    heard_at = edge.core.sessions[EDGE].heard_at
    edge.now += 1.0
    edge.say(forged)
    assert edge.core.sessions[EDGE].heard_at == heard_at


def test_an_edge_that_moved_is_followed_but_a_second_path_is_not(edge: HandEdge) -> None:
    edge.join()
    moved = "10.0.0.9:1883"
    edge.take(Received(EDGE, m.EdgeBeacon(edge=EDGE), moved, edge.now))
    assert edge.core.counters["other_link"] == 1
    edge.now += 8.0  # more than one and a half periods
    out = edge.take(Received(EDGE, m.EdgeBeacon(edge=EDGE), moved, edge.now))
    assert len(edge.said(m.Hello, out)) == 1
    assert edge.core.sessions.link_of(EDGE) == moved
    assert edge.core.sessions.on(moved)
    assert not edge.core.sessions.on(LINK)
    assert edge.said(
        m.ContextReport, edge.take(Received(EDGE, m.Welcome(edge=EDGE), moved, edge.now))
    )


def test_more_edges_than_anybody_has_are_counted_not_greeted(edge: HandEdge) -> None:
    for i in range(70):
        edge.say(m.EdgeBeacon(edge=f"edge-{i}"), edge=f"edge-{i}")
    assert len(edge.core.sessions) == 64
    assert edge.core.counters["too_many_edges"] == 6


def test_reports_come_when_something_moved_and_otherwise_in_their_period(tmp_path: Path) -> None:
    edge = joined(tmp_path, price=PriceSettings(base=1.0, per_compute=0.5))
    quiet(edge)
    edge.later(2.0)
    before = len(edge.said(m.ContextReport))
    edge.measure(Readings(compute=1.05))
    assert len(edge.said(m.ContextReport)) == before, "five percent is no news"
    edge.measure(Readings(compute=2.0))
    report = edge.said(m.ContextReport)[-1]
    assert len(edge.said(m.ContextReport)) == before + 1
    assert report.features["compute"] == 2.0
    assert report.price == 2_000_000
    edge.now += 1.1
    edge.measure(Readings(compute=2.0, available=False, reason="x"))
    assert not edge.said(m.ContextReport)[-1].available
    said = len(edge.said(m.ContextReport)) - 1
    for _ in range(40):
        edge.say(m.EdgeBeacon(edge=EDGE, period_ms=90_000))
        edge.later(10.0)
    periods = [report.period_ms / 1000 for report in edge.said(m.ContextReport)[said:]]
    assert periods == [15.0, 30.0, 60.0, 90.0, 90.0, 90.0, 90.0], "nothing happens any more"


def test_probes_measure_round_trip_then_both_rates_and_then_rest(edge: HandEdge) -> None:
    edge.join()
    quiet(edge)
    assert [(p.reply_bytes, len(p.data)) for p in edge.said(m.Probe)] == [
        (0, 0),
        (16384, 0),
        (0, 16384),
    ]
    measured = edge.core.sessions[EDGE].measured
    assert measured.rtt_s == pytest.approx(0.002)
    assert measured.download_bps is not None
    assert measured.upload_bps is not None
    edge.later(2.0)
    features = edge.said(m.ContextReport)[-1].features
    assert {"rtt_s", "download_bps", "upload_bps"} <= features.keys()


def test_a_newer_list_of_the_revoked_is_asked_for_once_and_taken_once(edge: HandEdge) -> None:
    edge.join()
    edge.say(m.EdgeBeacon(edge=EDGE, crl=3))
    assert not edge.said(m.RevocationsNeed), "outside of a site there are none"
    edge.take(Revoked(2, frozenset()))
    edge.say(m.EdgeBeacon(edge=EDGE, crl=2))
    assert not edge.said(m.RevocationsNeed)
    edge.say(m.Revocations(number=3, crl=b"unasked"))
    for _ in range(3):
        edge.say(m.EdgeBeacon(edge=EDGE, crl=3))
    assert edge.said(m.RevocationsNeed) == [m.RevocationsNeed(number=2)]
    edge.say(m.Revocations(number=3, crl=b"list"))
    edge.say(m.Revocations(number=4, crl=b"again"))
    assert edge.jobs(TakeRevocations) == [TakeRevocations(b"list")]
    assert edge.core.counters["revocations_unasked"] == 2


def test_a_revoked_edge_is_left_at_once_and_heard_on_no_link(edge: HandEdge) -> None:
    edge.join()
    edge.join(edge=OTHER)
    edge.take(Revoked(1, frozenset({EDGE})))
    assert edge.events("edge_lost") == [{"edge": EDGE}]
    hellos = len(edge.said(m.Hello))
    edge.say(m.EdgeBeacon(edge=EDGE))
    edge.take(Received(EDGE, m.EdgeBeacon(edge=EDGE), "another:1883", edge.now))
    assert len(edge.said(m.Hello)) == hellos
    assert edge.core.counters["edge_revoked"] == 2
    assert set(edge.core.sessions) == {OTHER}
