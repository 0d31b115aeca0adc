"""Mode peers at one edge: volunteers go up, envelopes pass sideways, opinions nowhere."""

import itertools
from collections import Counter
from contextlib import suppress

import pytest

from fedagent_edge.core.effects import Ignored
from fedagent_edge.core.neighbours import CARDS_BYTES, INBOX_BYTES, LINGER_S, OVERHEAD_BYTES
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import MAX_NEIGHBOURS, MAX_PEER_BYTES

from .evaluators import RUN, Hall, peers_task, volunteers


def _hall(*agents: str, **facts: object) -> Hall:
    hall = Hall(body=peers_task(**facts))
    hall.hello(*agents)
    return hall


def _called(*agents: str, **facts: object) -> Hall:
    hall = _hall(*agents, **facts)
    hall.open(mode="peers", until_ms=1_000_000)
    return hall


def _envelope(to: str, size: int = 256) -> m.PeerSend:
    return m.PeerSend(to=to, body=bytes(size))


# ------------------------------------------------------------------ volunteers


def test_volunteers_go_up_together_and_cumulative() -> None:
    hall = _hall("a0", "a1", "a2")
    hall.open(mode="peers", slot=2)
    call = hall.down("a0", m.OpinionCall)[0]
    assert (call.mode, call.slot) == ("peers", 2)
    assert [(one.asked, one.session) for one in hall.up(m.Volunteers)] == [(3, b"")]
    hall.wait(0.3)
    hall.volunteer("a2")
    hall.wait(0.01)
    hall.volunteer("a0")
    assert len(hall.up(m.Volunteers)) == 1
    hall.wait(0.01)
    assert [volunteers(one) for one in hall.up(m.Volunteers)] == [[], ["a0", "a2"]]
    hall.volunteer("a0")
    hall.wait(0.1)
    assert len(hall.up(m.Volunteers)) == 2, "it says so until its order comes"
    hall.volunteer("a1")
    hall.wait(0.02)
    last = hall.up(m.Volunteers)[-1]
    assert volunteers(last) == ["a0", "a1", "a2"]
    assert decode(Direction.EDGE_TO_COORDINATOR, encode(last)) == last


# --------------------------------------------------------------------- envelopes


def test_nothing_is_carried_before_a_call_and_soon_after_it_no_more() -> None:
    """Members who have nothing to decide have nothing to say to each other."""
    hall = _hall("a0", "a1")
    hall.wait(1.0)
    assert not hall.down("a0", m.Neighbours), "it shows them its card when it hears of them"
    hall.say("a0", _envelope("a1"))
    assert hall.core.counters["relay_closed"] == 1
    for number, ended_at in ((1, 1.0), (2, 5.0)):
        hall.open(number, mode="peers", until_ms=5000)
        hall.wait(ended_at)
        if number == 1:
            hall.tell(m.OpinionClose(run=RUN, round=1))
        hall.wait(LINGER_S - 0.1)
        hall.say("a0", _envelope("a1"))
        assert hall.core.counters["relayed"] == number, "who is not answered calls it silence"
        hall.wait(0.2)
        hall.say("a0", _envelope("a1"))
        assert hall.core.counters["relay_closed"] == 1 + number


@pytest.mark.parametrize("facts", [{"neighbours": 1}, {"graph": "radius", "radius_km": 1.5}])
def test_envelopes_go_between_neighbours_alone(facts: dict[str, object]) -> None:
    names = [f"a{i}" for i in range(6)]
    hall = _hall(*names, **facts)
    for number, agent in enumerate(names):
        hall.place(agent, float(number), 0.0)
    hall.open(mode="peers")
    near = {agent: set(hall.down(agent, m.Neighbours)[-1].peers) for agent in names}
    assert near["a0"] == {"a1"}
    for agent, to in itertools.permutations(names, 2):
        before = hall.core.counters["relay_stranger"]
        hall.say(agent, _envelope(to))
        carried = bool(hall.down(to, m.PeerDeliver)) and (
            hall.down(to, m.PeerDeliver)[-1].sender == agent
        )
        assert carried == (to in near[agent])
        assert hall.core.counters["relay_stranger"] == before + (not carried)


def test_who_was_a_neighbour_in_this_call_is_reached_until_the_next() -> None:
    hall = _hall(*(f"a{i}" for i in range(8)), neighbours=2)
    hall.open(mode="peers", until_ms=60_000)
    assert "a5" in hall.down("a4", m.Neighbours)[-1].peers
    hall.hello("a45")
    hall.wait(0.3)
    assert "a5" not in hall.down("a4", m.Neighbours)[-1].peers
    hall.say("a4", _envelope("a5"))
    hall.say("a4", _envelope("a45"))
    assert hall.core.counters["relayed"] == 2
    hall.open(2, mode="peers")
    hall.say("a4", _envelope("a5"))
    assert (hall.core.counters["relayed"], hall.core.counters["relay_stranger"]) == (2, 1)


def test_where_devices_know_their_neighbours_nobody_hears_whom_it_does_not_write_to() -> None:
    """38 members at their own rates: 9.7 MB/s to one device, before it was asked."""
    crowd = [f"evil{i}" for i in range(38)]
    hall = _called("device", "friend", *crowd, graph="declared")
    for _ in range(10):
        for agent in crowd:
            hall.say(agent, _envelope("device", 26_000))
        hall.now += 0.1
    assert not hall.down("device", m.PeerDeliver)
    assert hall.core.counters["relay_stranger"] == 380
    hall.say("friend", _envelope("device"))
    assert hall.down("device", m.PeerDeliver), "one of two has to write first: a card"
    hall.say("friend", _envelope("device", 4000))
    assert len(hall.down("device", m.PeerDeliver)) == 1
    hall.say("device", _envelope("friend"))
    for _ in range(10):
        hall.say("friend", _envelope("device", 4000))
    assert len(hall.down("device", m.PeerDeliver)) == 11
    assert [one.sender for one in hall.down("friend", m.PeerDeliver)] == ["device"]
    hall.open(2, mode="peers")
    hall.say("friend", _envelope("device", 4000))
    assert len(hall.down("device", m.PeerDeliver)) == 12, "they know each other from then on"


@pytest.mark.parametrize(("greedy", "size"), [(1, 0), (7, 3000), (40, MAX_PEER_BYTES)])
def test_neighbours_share_what_one_device_may_be_sent(greedy: int, size: int) -> None:
    crowd = [f"evil{i}" for i in range(greedy)]
    hall = _called("device", "friend", *crowd, graph="radius", radius_km=1.0)
    for agent in ("device", "friend", *crowd):
        hall.place(agent, 0.0, 0.0)
    hall.open(2, mode="peers", until_ms=100_000)
    assert len(hall.down("device", m.Neighbours)[-1].peers) == greedy + 1
    relay = hall.core.evaluations.neighbours
    for second in range(7):
        for agent in crowd:
            for _ in range(1000 if greedy == 1 else 60):
                with suppress(Ignored):
                    relay._check(agent, _envelope("device", size), hall.now + second)
    had = Counter({by: cost for (to, by), cost in relay._had.items() if to == "device"})
    share = max(INBOX_BYTES // (greedy + 1), MAX_PEER_BYTES + OVERHEAD_BYTES)
    assert max(had.values()) <= share
    assert had.total() <= max(INBOX_BYTES, (greedy + 1) * (MAX_PEER_BYTES + OVERHEAD_BYTES))
    before = len(hall.down("device", m.PeerDeliver))
    for _ in range(4):
        hall.say("friend", _envelope("device", 4000))
    assert len(hall.down("device", m.PeerDeliver)) == before + 4


# ------------------------------------------------------------------ neighbours


@pytest.mark.parametrize("graph", ["near", "radius", "declared"])
def test_who_comes_in_mid_call_is_called_with_its_neighbours(graph: str) -> None:
    hall = _hall("a0", "a1", graph=graph)
    hall.open(mode="peers")
    hall.hello("a2")
    assert not hall.down("a2", m.OpinionCall), "without neighbours it would think it is alone"
    hall.wait(0.3)
    kinds = [type(x) for x in hall.down("a2", m.Message)]
    assert kinds == [m.Welcome, m.Neighbours, m.OpinionCall]
    assert hall.down("a2", m.Neighbours)[0].peers.keys() == (
        {"a0", "a1"} if graph == "near" else set()
    )
    hall.volunteer("a2")
    hall.wait(0.1)
    assert volunteers(hall.up(m.Volunteers)[-1]) == ["a2"]


def test_cards_of_strangers_are_few() -> None:
    hall = _called("device", "friend", *(f"evil{i}" for i in range(200)), graph="declared")
    hall.say("device", _envelope("friend"))
    for number in range(200):
        for _ in range(5):
            hall.say(f"evil{number}", _envelope("device"))
    passed = sum(len(one.body) for one in hall.down("device", m.PeerDeliver))
    assert 0 < passed <= CARDS_BYTES
    hall.say("friend", _envelope("device", MAX_PEER_BYTES))
    assert hall.down("device", m.PeerDeliver)[-1].sender == "friend"


def test_whom_a_device_writes_to_is_not_remembered_without_end() -> None:
    hall = _called("device", *(f"a{i}" for i in range(300)), graph="declared")
    for number in range(300):
        hall.say("device", _envelope(f"a{number}"))
    met = hall.core.evaluations.neighbours._met["device"]
    assert len(met) == 2 * MAX_NEIGHBOURS
    assert "a299" in met
